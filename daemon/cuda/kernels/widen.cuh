// Stored weights decoded where they can be read again: for a multiplication by a library that knows no formats.

#pragma once

#include "format.cuh"

// Weights that a block takes: whole blocks of every format.
constexpr u32 WIDEN_WEIGHTS = 2048;
constexpr u32 WIDEN_THREADS = 128;

template <class T, class Format> DEVICE void widen_weights(T *out, const u8 *weights, u64 count) {
    const u64 start = u64(blockIdx.x) * WIDEN_WEIGHTS;
    const u8 *from = weights + start / Format::BLOCK * Format::BYTES;
    const u32 len = u32(min(count - start, u64(WIDEN_WEIGHTS)));
    for (u32 at = threadIdx.x * Format::RUN; at < len; at += WIDEN_THREADS * Format::RUN) {
        float values[Format::RUN];
        Format::decode(format::fetch_within<Format>(from, at, len), values);
#pragma unroll
        for (u32 i = 0; i < Format::RUN; i++) {
            if (at + i < len) out[start + at + i] = narrow<T>(values[i]);
        }
    }
}

#define WIDEN_KERNEL(T, F) \
    KERNEL_FUNCTION widen_##T##_##F(number::T *out, const u8 *weights, u64 count) { \
        widen_weights<number::T, format::F>(out, weights, count); \
    }
#define WIDEN_KERNELS(T) FOR_EACH_FORMAT(WIDEN_KERNEL, T)
