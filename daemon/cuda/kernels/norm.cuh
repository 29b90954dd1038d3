// Normalisations of residual rows, a block a row: to a root mean square of 1, and to mean 0 and variance 1.

#pragma once

#include "elementwise.cuh"
#include "reduce.cuh"

// One divided by a row's root mean square, of whose square `epsilon` more is taken.
DEVICE float inverse_rms(const float *x, u32 width, float epsilon) {
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) squares = fmaf(x[i], x[i], squares);
    squares = sum_of_block(squares);
    return 1.0f / sqrtf(squares / float(width) + epsilon);
}

template <class T>
DEVICE void rms_norm(T *out, const float *x, const u8 *weight, u32 weight_format, u32 width, float epsilon) {
    x += u64(blockIdx.x) * width;
    out += u64(blockIdx.x) * width;
    const float inverse = inverse_rms(x, width, epsilon);
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) {
        out[i] = narrow<T>(x[i] * inverse * stored_number(weight, weight_format, i));
    }
}

// Added to `out`.
DEVICE void add_rms_norm(float *out, const float *x, const u8 *weight, u32 weight_format, u32 width, float epsilon) {
    x += u64(blockIdx.x) * width;
    out += u64(blockIdx.x) * width;
    const float inverse = inverse_rms(x, width, epsilon);
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) {
        out[i] += x[i] * inverse * stored_number(weight, weight_format, i);
    }
}

// In place, of a row's heads: a block a row and 8 heads, a warp a head. A weight that isn't there is 1.
template <class T>
DEVICE void rms_norm_heads(T *x, const u8 *weight, u32 weight_format, u32 heads, u32 head_dim, float epsilon) {
    const u32 lane = threadIdx.x % WARP, head = blockIdx.y * (REDUCE_THREADS / WARP) + threadIdx.x / WARP;
    if (head >= heads) return;
    x += (u64(blockIdx.x) * heads + head) * head_dim;
    float squares = 0.0f;
    for (u32 i = lane; i < head_dim; i += WARP) squares = fmaf(widen(x[i]), widen(x[i]), squares);
    const float inverse = 1.0f / sqrtf(sum_of_warp(squares) / float(head_dim) + epsilon);
    for (u32 i = lane; i < head_dim; i += WARP) {
        const float factor = weight == nullptr ? 1.0f : stored_number(weight, weight_format, i);
        x[i] = narrow<T>(widen(x[i]) * inverse * factor);
    }
}

// The mean is taken off before squares are summed, as on the CPU: where it is large beside the spread, the difference of
// two sums would be lost.
template <class T>
DEVICE void layer_norm(T *out, const float *x, const float *weight, const float *bias, u32 width, float epsilon) {
    x += u64(blockIdx.x) * width;
    out += u64(blockIdx.x) * width;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) sum += x[i];
    const float mean = sum_of_block(sum) / float(width);
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) {
        const float centered = x[i] - mean;
        squares = fmaf(centered, centered, squares);
    }
    const float inverse = 1.0f / sqrtf(sum_of_block(squares) / float(width) + epsilon);
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) {
        out[i] = narrow<T>((x[i] - mean) * inverse * weight[i] + bias[i]);
    }
}
