// The multiplication of many rows in 16-bit numbers, on the matrix units: `out = x · weightsᵀ`. A block makes a tile of
// the result; it goes along the width in steps, and decodes the weights of a step on their way into shared memory.

#pragma once

#include "weights.cuh"

// A block's tile of the result, and how its warps share it.
template <u32 ROWS_, u32 OUTPUTS_, u32 WARP_ROWS_, u32 WARP_OUTPUTS_> struct Shape {
    static constexpr u32 ROWS = ROWS_, OUTPUTS = OUTPUTS_;
    static constexpr u32 WARP_ROWS = WARP_ROWS_, WARP_OUTPUTS = WARP_OUTPUTS_;
    static constexpr u32 WARPS_ACROSS = OUTPUTS / WARP_OUTPUTS;
    static constexpr u32 WARPS = ROWS / WARP_ROWS * WARPS_ACROSS;
    static constexpr u32 THREADS = WARPS * WARP;
};
using Large = Shape<128, 128, 64, 32>;
using Small = Shape<64, 64, 32, 32>;

template <class Shape, class T, class Weights>
DEVICE void multiply(Output<T> out, const T *x, const Weights &weights, u32 rows, u32 outputs, u32 width) {
    using namespace nvcuda;
    constexpr u32 STEP = 32;
    // The padding puts eight rows of 16 bytes into different banks.
    constexpr u32 STRIDE = STEP + 8;
    constexpr u32 TILES = (Shape::ROWS + Shape::OUTPUTS) * STRIDE;
    constexpr u32 STAGE_STRIDE = 32 + 4;
    constexpr u32 STAGE = 16 * STAGE_STRIDE;
    constexpr u32 DOWN = Shape::WARP_ROWS / 16, ACROSS = Shape::WARP_OUTPUTS / 16;
    static_assert(ACROSS == 2, "results leave 32 columns at a time");
    static_assert(Shape::WARPS * STAGE * sizeof(float) <= 2 * TILES * sizeof(T), "results leave through the tiles");

    // Two pairs of tiles: one is filled while the other is multiplied.
    __shared__ __align__(128) T tiles[2 * TILES];

    // Tiles of the same weights run side by side, so that the second finds them in the cache.
    const u32 first_row = blockIdx.x * Shape::ROWS, first_output = blockIdx.y * Shape::OUTPUTS;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 warp_row = warp / Shape::WARPS_ACROSS * Shape::WARP_ROWS;
    const u32 warp_output = warp % Shape::WARPS_ACROSS * Shape::WARP_OUTPUTS;

    Share<format::Dense<T>, Shape::ROWS, STEP, Shape::THREADS> of_x;
    typename Weights::template Tile<Shape::OUTPUTS, STEP, Shape::THREADS> of_weights(weights, first_output);
    const auto fetch = [&](u32 at) {
        const u64 x_bytes = u64(width) * sizeof(T);
        of_x.fetch(reinterpret_cast<const u8 *>(x) + first_row * x_bytes, x_bytes, rows - first_row, at, width);
        of_weights.fetch(at);
    };

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[DOWN][ACROSS];
#pragma unroll
    for (u32 i = 0; i < DOWN; i++) {
#pragma unroll
        for (u32 j = 0; j < ACROSS; j++) wmma::fill_fragment(sums[i][j], 0.0f);
    }

    // A turn fetches a step's tiles, multiplies those of the step before, and stores what it fetched.
    for (u32 at = 0; at < width + STEP; at += STEP) {
        T *next = tiles + at / STEP % 2 * TILES;
        const T *present = tiles + (at / STEP + 1) % 2 * TILES;
        if (at < width) fetch(at);
        if (at > 0) {
            const T *of_warp = present + warp_row * STRIDE;
            const T *weights_of_warp = present + (Shape::ROWS + warp_output) * STRIDE;
#pragma unroll
            for (u32 k = 0; k < STEP; k += 16) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> b[ACROSS];
#pragma unroll
                for (u32 j = 0; j < ACROSS; j++) {
                    wmma::load_matrix_sync(b[j], weights_of_warp + 16 * j * STRIDE + k, STRIDE);
                }
#pragma unroll
                for (u32 i = 0; i < DOWN; i++) {
                    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> a;
                    wmma::load_matrix_sync(a, of_warp + 16 * i * STRIDE + k, STRIDE);
#pragma unroll
                    for (u32 j = 0; j < ACROSS; j++) wmma::mma_sync(sums[i][j], a, b[j], sums[i][j]);
                }
            }
        }
        if (at < width) {
            of_x.store(next, STRIDE);
            of_weights.store(next + Shape::ROWS * STRIDE, STRIDE);
        }
        __syncthreads();
    }

    // Only the warp knows where in its lanes a sum lies, so sums pass through memory to those that write them.
    float *stage = reinterpret_cast<float *>(tiles) + warp * STAGE;
    const u32 output = first_output + warp_output + lane;
#pragma unroll
    for (u32 i = 0; i < DOWN; i++) {
#pragma unroll
        for (u32 j = 0; j < ACROSS; j++) {
            wmma::store_matrix_sync(stage + 16 * j, sums[i][j], STAGE_STRIDE, wmma::mem_row_major);
        }
        __syncwarp();
        const u32 row = first_row + warp_row + 16 * i;
#pragma unroll 2
        for (u32 r = 0; r < 16; r++) {
            if (row + r < rows && output < outputs) {
                out.put(row + r, output, stage[r * STAGE_STRIDE + lane]);
            }
        }
        __syncwarp();
    }
}

#define MULTIPLY_KERNEL(T, F) \
    KERNEL_FUNCTION __launch_bounds__(Large::THREADS, 2) \
        multiply_##T##_##F(void *out, u32 out_is_f32, const number::T *x, const u8 *weights, u32 rows, u32 outputs, \
                           u32 width, u32 out_stride, float beta) { \
        multiply<Large>(Output<number::T>{out, out_is_f32 != 0, out_stride, beta}, x, \
                        Stored<format::F>{weights, outputs, width}, rows, outputs, width); \
    } \
    KERNEL_FUNCTION __launch_bounds__(Small::THREADS) \
        multiply_small_##T##_##F(void *out, u32 out_is_f32, const number::T *x, const u8 *weights, u32 rows, \
                                 u32 outputs, u32 width, u32 out_stride, float beta) { \
        multiply<Small>(Output<number::T>{out, out_is_f32 != 0, out_stride, beta}, x, \
                        Stored<format::F>{weights, outputs, width}, rows, outputs, width); \
    }
