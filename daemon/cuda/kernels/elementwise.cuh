// Operations that take each number of a matrix for itself. Grids have a thread a number.

#pragma once

#include "number.cuh"

DEVICE u64 thread_of_grid() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }

// Residual rows become numbers that are computed in.
template <class T> DEVICE void convert(T *out, const float *x, u64 count) {
    const u64 i = thread_of_grid();
    if (i < count) out[i] = narrow<T>(x[i]);
}

// What cuBLAS rounded to infinity becomes the largest number, as in products of our own kernels. Rows begin `stride` numbers
// apart; a block has a part of one.
template <class T> DEVICE void saturate(T *x, u32 width, u32 stride) {
    const u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    T *number = x + u64(blockIdx.x) * stride + column;
    if (column < width) *number = narrow<T>(widen(*number));
}

template <class T> DEVICE void add(float *x, const T *y, u64 count) {
    const u64 i = thread_of_grid();
    if (i < count) x[i] += widen(y[i]);
}

// `silu(gate) · up`, in the gate's place.
template <class T> DEVICE void silu_multiply(T *gate, const T *up, u64 count) {
    const u64 i = thread_of_grid();
    if (i < count) {
        const float value = widen(gate[i]);
        gate[i] = narrow<T>(value / (1.0f + expf(-value)) * widen(up[i]));
    }
}

// Rotates the half-split pairs of each head (element i with i + half) by its row's position. A row of `table` is
// `half` cosines, then as many sines.
template <class T>
DEVICE void rope(T *x, const float *table, const u32 *positions, u32 rows, u32 heads, u32 half) {
    const u64 pair = thread_of_grid();
    if (pair >= u64(rows) * heads * half) return;
    const u32 i = u32(pair % half);
    const u64 head = pair / half;
    const float *angles = table + u64(positions[head / heads]) * 2 * half;
    const float cos = angles[i], sin = angles[half + i];
    T *low = x + head * 2 * half + i;
    T *high = low + half;
    const float a = widen(*low), b = widen(*high);
    *low = narrow<T>(a * cos - b * sin);
    *high = narrow<T>(b * cos + a * sin);
}
