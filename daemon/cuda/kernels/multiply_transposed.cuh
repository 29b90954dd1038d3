// The multiplication by weights as they are, `out = x · weights`, through which gradients go back: a row of the result has
// a number for each column of the weights. Weights are numbers side by side; other formats are decoded first. It is in
// `f32` arithmetic: cuBLAS, where there is one, takes most of this work.

#pragma once

#include "elementwise.cuh"
#include "tile.cuh"

// A block makes a tile of 64 by 64, and each thread four by four of it, as far apart as its warp's neighbours are wide.
constexpr u32 TRANSPOSED_SIDE = 64;
constexpr u32 TRANSPOSED_STEP = 32;
constexpr u32 TRANSPOSED_THREADS = 256;

// `x` has `depth` columns of rows that begin `x_stride` numbers apart, and weights `depth` rows.
template <class T>
DEVICE void multiply_transposed(float *out, const T *x, u32 x_stride, const u8 *weights, u32 format, u32 rows, u32 outputs,
                                u32 depth, float beta) {
    // Padding that keeps groups of four aligned.
    constexpr u32 STRIDE = TRANSPOSED_SIDE + 4;
    __shared__ __align__(16) float x_tile[TRANSPOSED_STEP * STRIDE];
    __shared__ __align__(16) float weight_tile[TRANSPOSED_STEP * STRIDE];

    const u32 first_row = blockIdx.x * TRANSPOSED_SIDE, first_output = blockIdx.y * TRANSPOSED_SIDE;
    const u32 thread_row = threadIdx.x / 16 * 4, thread_output = threadIdx.x % 16 * 4;
    float sums[4][4] = {};
    for (u32 at = 0; at < depth; at += TRANSPOSED_STEP) {
#pragma unroll 4
        for (u32 i = threadIdx.x; i < TRANSPOSED_STEP * TRANSPOSED_SIDE; i += TRANSPOSED_THREADS) {
            const u32 k = i % TRANSPOSED_STEP, row = i / TRANSPOSED_STEP;
            const bool is_there = at + k < depth && first_row + row < rows;
            x_tile[k * STRIDE + row] = is_there ? widen(x[u64(first_row + row) * x_stride + at + k]) : 0.0f;
        }
#pragma unroll 4
        for (u32 i = threadIdx.x; i < TRANSPOSED_STEP * TRANSPOSED_SIDE; i += TRANSPOSED_THREADS) {
            const u32 k = i / TRANSPOSED_SIDE, output = i % TRANSPOSED_SIDE;
            const bool is_there = at + k < depth && first_output + output < outputs;
            const u8 *row = weights + u64(at + k) * outputs * (format == 0 ? 4 : 2);
            weight_tile[k * STRIDE + output] = is_there ? stored_number(row, format, first_output + output) : 0.0f;
        }
        __syncthreads();
#pragma unroll 4
        for (u32 k = 0; k < TRANSPOSED_STEP; k++) {
            float a[4], b[4];
            four_at(x_tile + k * STRIDE + thread_row, a);
            four_at(weight_tile + k * STRIDE + thread_output, b);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
#pragma unroll
                for (u32 j = 0; j < 4; j++) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 row = first_row + thread_row + i;
        if (row >= rows) continue;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 output = first_output + thread_output + j;
            float *to = out + u64(row) * outputs + output;
            if (output < outputs) *to = accumulated(sums[i][j], beta, to);
        }
    }
}

#define MULTIPLY_TRANSPOSED_KERNEL(T) \
    KERNEL_FUNCTION __launch_bounds__(TRANSPOSED_THREADS) \
        multiply_transposed_##T(float *out, const number::T *x, u32 x_stride, const u8 *weights, u32 format, u32 rows, \
                                u32 outputs, u32 depth, float beta) { \
        multiply_transposed(out, x, x_stride, weights, format, rows, outputs, depth, beta); \
    }
