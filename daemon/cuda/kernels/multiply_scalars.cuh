// The multiplication of many rows in `f32`: `out = x · weightsᵀ`. No matrix unit takes such numbers whole, so each thread
// multiplies and adds a tile of its own, from shared memory where columns lie side by side.

#pragma once

#include "weights.cuh"

// A block's tile of the result; each thread has groups of four by four of it, as far apart as the threads' own are wide.
template <u32 ROWS_, u32 OUTPUTS_, u32 THREAD_ROWS, u32 THREAD_OUTPUTS> struct ScalarShape {
    static constexpr u32 ROWS = ROWS_, OUTPUTS = OUTPUTS_;
    static constexpr u32 DOWN = THREAD_ROWS / 4, ACROSS = THREAD_OUTPUTS / 4;
    static constexpr u32 THREADS_DOWN = ROWS / THREAD_ROWS, THREADS_ACROSS = OUTPUTS / THREAD_OUTPUTS;
    static constexpr u32 THREADS = THREADS_DOWN * THREADS_ACROSS;
};
using ScalarLarge = ScalarShape<128, 128, 8, 8>;
using ScalarSmall = ScalarShape<64, 64, 4, 8>;

template <class Shape, class Weights>
DEVICE void multiply_scalars(float *out, const float *x, const Weights &weights, u32 rows, u32 outputs, u32 width,
                             u32 out_stride, float beta) {
    constexpr u32 STEP = 32;
    // Padding that keeps groups of four aligned.
    constexpr u32 X_STRIDE = Shape::ROWS + 4, WEIGHT_STRIDE = Shape::OUTPUTS + 4;
    constexpr u32 DOWN = Shape::DOWN, ACROSS = Shape::ACROSS;
    __shared__ __align__(16) float x_tile[STEP * X_STRIDE];
    __shared__ __align__(16) float weight_tile[STEP * WEIGHT_STRIDE];

    const u32 first_row = blockIdx.x * Shape::ROWS, first_output = blockIdx.y * Shape::OUTPUTS;
    const u32 thread_row = threadIdx.x / Shape::THREADS_ACROSS * 4;
    const u32 thread_output = threadIdx.x % Shape::THREADS_ACROSS * 4;

    Share<format::f32, Shape::ROWS, STEP, Shape::THREADS> of_x;
    typename Weights::template Tile<Shape::OUTPUTS, STEP, Shape::THREADS> of_weights(weights, first_output);
    const auto fetch = [&](u32 at) {
        const u64 x_bytes = u64(width) * sizeof(float);
        of_x.fetch(reinterpret_cast<const u8 *>(x) + first_row * x_bytes, x_bytes, rows - first_row, at, width);
        of_weights.fetch(at);
    };

    float sums[4 * DOWN][4 * ACROSS] = {};
    // A turn fetches a step's tiles, multiplies those of the step before, and stores what it fetched.
    for (u32 at = 0; at < width + STEP; at += STEP) {
        if (at < width) fetch(at);
        if (at > 0) {
#pragma unroll 2
            for (u32 k = 0; k < STEP; k++) {
                float a[4 * DOWN], b[4 * ACROSS];
#pragma unroll
                for (u32 i = 0; i < DOWN; i++) {
                    const float *from = x_tile + k * X_STRIDE + i * 4 * Shape::THREADS_DOWN + thread_row;
                    four_at(from, a + 4 * i);
                }
#pragma unroll
                for (u32 j = 0; j < ACROSS; j++) {
                    const float *from = weight_tile + k * WEIGHT_STRIDE + j * 4 * Shape::THREADS_ACROSS + thread_output;
                    four_at(from, b + 4 * j);
                }
#pragma unroll
                for (u32 i = 0; i < 4 * DOWN; i++) {
#pragma unroll
                    for (u32 j = 0; j < 4 * ACROSS; j++) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
                }
            }
        }
        __syncthreads();
        if (at < width) {
            of_x.store_across(x_tile, X_STRIDE);
            of_weights.store_across(weight_tile, WEIGHT_STRIDE);
        }
        __syncthreads();
    }

#pragma unroll
    for (u32 i = 0; i < 4 * DOWN; i++) {
        const u32 row = first_row + i / 4 * 4 * Shape::THREADS_DOWN + thread_row + i % 4;
        if (row >= rows) continue;
#pragma unroll
        for (u32 j = 0; j < ACROSS; j++) {
            const u32 output = first_output + j * 4 * Shape::THREADS_ACROSS + thread_output;
            float *to = out + u64(row) * out_stride + output;
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                if (output + k < outputs) to[k] = accumulated(sums[i][4 * j + k], beta, to + k);
            }
        }
    }
}
