// Root mean square normalisation of residual rows, a block a row.

#pragma once

#include "elementwise.cuh"
#include "reduce.cuh"

template <class T>
DEVICE void rms_norm(T *out, const float *x, const u8 *weight, u32 weight_format, u32 width, float epsilon) {
    x += u64(blockIdx.x) * width;
    out += u64(blockIdx.x) * width;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) squares = fmaf(x[i], x[i], squares);
    squares = sum_of_block(squares);
    const float inverse = 1.0f / sqrtf(squares / float(width) + epsilon);
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) {
        out[i] = narrow<T>(x[i] * inverse * stored_number(weight, weight_format, i));
    }
}
