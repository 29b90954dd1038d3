// Root mean square normalisation of residual rows, a block a row.

#pragma once

#include "number.cuh"
#include "reduce.cuh"

// A norm's weights come as they are stored.
DEVICE float norm_weight(const u8 *weight, u32 format, u32 i) {
    if (format == 0) return reinterpret_cast<const float *>(weight)[i];
    const u32 half = reinterpret_cast<const u16 *>(weight)[i];
    return format == 1 ? from_bits<__half>(half) : from_bits<__nv_bfloat16>(half);
}

template <class T>
DEVICE void rms_norm(T *out, const float *x, const u8 *weight, u32 weight_format, u32 width, float epsilon) {
    x += u64(blockIdx.x) * width;
    out += u64(blockIdx.x) * width;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) squares = fmaf(x[i], x[i], squares);
    squares = sum_of_block(squares);
    const float inverse = 1.0f / sqrtf(squares / float(width) + epsilon);
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) {
        out[i] = narrow<T>(x[i] * inverse * norm_weight(weight, weight_format, i));
    }
}
