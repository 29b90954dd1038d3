// Stored weights become numbers that are computed in: what the engine's own decoders give, narrowed.

#pragma once

#include "format_decoded.cuh"
#include "stores.cuh"

// Rows are whole blocks, so all weights are one sequence of runs. A thread takes one: it reads 16 bytes of weights at least,
// and its neighbours read what is left of the same sectors, which the first cache has by then.
template <class T, class Format> DEVICE void dequantize(T *out, const u8 *weights, u64 runs) {
    constexpr u32 RUNS_OF_BLOCK = Format::BLOCK / Format::RUN;
    static_assert(Format::RUN == 16 && RUNS_OF_BLOCK % 2 == 0, "runs come in pairs");

    const u64 run = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    constexpr u32 COUNT = Format::RUN * sizeof(T) / 16;
    uint4 words[COUNT] = {};
    if (run < runs) {
        const u8 *block = weights + run / RUNS_OF_BLOCK * Format::BYTES;
        float values[Format::RUN];
        Format::decode(Format::fetch(block, u32(run % RUNS_OF_BLOCK) * Format::RUN), values);
        to_words<T>(values, words);
    }
    uint4 *to = reinterpret_cast<uint4 *>(out) + run / 2 * (2 * COUNT);
    store_of_pair(run < runs ? to : nullptr, words);
}

#define DEQUANTIZE_KERNEL(T, F) \
    KERNEL_FUNCTION dequantize_##T##_##F(number::T *out, const u8 *weights, u64 runs) { \
        dequantize<number::T, format::F>(out, weights, runs); \
    }

#define DEQUANTIZE_KERNELS(T) \
    DEQUANTIZE_KERNEL(T, q8_0) \
    DEQUANTIZE_KERNEL(T, q6_k) \
    DEQUANTIZE_KERNEL(T, q4_k) \
    FOR_EACH_DECODED_FORMAT(DEQUANTIZE_KERNEL, T)
