// The kernels that decode a matrix, into one type of number. A block of DECODE_WARPS warps has as many strips of a chunk;
// those of chunks with fewer end at once.

#pragma once

#include "decode_huffman.cuh"
#include "decode_palette.cuh"
#include "decode_rate.cuh"

// Registers for all that a thread has, and warps enough to hide how long memory takes: half of a card's or more.
#define DECODE_BOUNDS __launch_bounds__(DECODE_WARPS * WARP, 4)
#define DECODE_PARAMETERS(T) (number::T * out, const u8 *bytes, u32 width, u32 tile, CodedChunks chunks)

#define DECODE_LOSSLESS_KERNELS(T, S) \
    KERNEL_FUNCTION DECODE_BOUNDS decode_huffman_##T##_##S DECODE_PARAMETERS(T) { \
        decode_huffman<number::T, number::S>(out, bytes, width, tile, chunks.each[blockIdx.y]); \
    } \
    KERNEL_FUNCTION DECODE_BOUNDS decode_palette_##T##_##S DECODE_PARAMETERS(T) { \
        decode_palette<number::T, number::S>(out, bytes, width, tile, chunks.each[blockIdx.y]); \
    }

#define DECODE_KERNELS(T) \
    DECODE_LOSSLESS_KERNELS(T, f32) \
    DECODE_LOSSLESS_KERNELS(T, f16) \
    DECODE_LOSSLESS_KERNELS(T, bf16) \
    KERNEL_FUNCTION DECODE_BOUNDS decode_rate_##T DECODE_PARAMETERS(T) { \
        decode_rate<number::T>(out, bytes, width, tile, chunks.each[blockIdx.y]); \
    }
