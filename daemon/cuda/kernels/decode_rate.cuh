// Numbers coded to a chosen rate: levels of a step, by Huffman codes. `rate/levels.rs` and `rate/trellis.rs` of the codec
// say what symbols stand for; this follows them number for number.

#pragma once

#include "decode_huffman.cuh"

constexpr u32 RATE_SYMBOLS = 128;

// The level of a symbol that isn't moved to a mean, in steps.
DEVICE float point_of(u32 symbol) {
    constexpr float LINEAR_END = 48.0f, GROWTH = 1.35f;
    const float at = float(symbol) - float(RATE_SYMBOLS / 2) + 0.25f;
    float beyond = fabsf(at) - LINEAR_END;
    if (beyond <= 0.0f) return at;
    float end = LINEAR_END;
    while (beyond >= 1.0f) {
        end *= GROWTH;
        beyond -= 1.0f;
    }
    return copysignf(end + end * (GROWTH - 1.0f) * beyond, at);
}

// By what the matrix's step is multiplied, from a row's byte: eight an octave.
DEVICE float row_ratio(u32 byte) {
    if (byte == 0) return 0.0f;
    const u32 eighth = byte % 8;
    const float low = eighth < 2 ? (eighth == 0 ? 1.0f : 1.0905077f) : (eighth == 2 ? 1.1892071f : 1.2968396f);
    const float high = eighth < 6 ? (eighth == 4 ? 1.41421356237309504880f : 1.5422108f)
                                  : (eighth == 6 ? 1.6817928f : 1.8340081f);
    return (eighth < 4 ? low : high) * __uint_as_float((127 + byte / 8 - 8) << 23);
}

struct RateShared {
    HuffmanShared huffman;
    // By a symbol and its mark, in parts of a step; by a row's byte, a part of its step.
    float levels[2 * RATE_SYMBOLS], row_parts[256];

    DEVICE void build(const u8 *table) {
        constexpr u32 LENGTHS = 64, MEANS = 64, FIRST_MEAN = RATE_SYMBOLS / 2 - MEANS / 2;
        constexpr float PARTS = 256.0f;
        for (u32 i = threadIdx.x; i < 256; i += blockDim.x) {
            const u32 symbol = i % RATE_SYMBOLS, mean = symbol - FIRST_MEAN;
            const float moved = mean < MEANS ? float(static_cast<signed char>(__ldg(table + LENGTHS + mean))) : 0.0f;
            const float level = point_of(symbol) * PARTS + moved;
            // Not its negative: where it is zero, that is the zero that integers have.
            levels[i] = i < RATE_SYMBOLS ? level : 0.0f - level;
            const float part = __uint_as_float(__ldg(reinterpret_cast<const u32 *>(table + LENGTHS + MEANS)));
            row_parts[i] = part * row_ratio(i);
        }
        huffman.table.build(table, LENGTHS / 4);
    }
};

template <class T> struct RateNumbers {
    static constexpr u32 COUNT = 8 * sizeof(T) / 16;
    const float *levels, *row_parts;
    const u8 *steps;
    u32 width;

    DEVICE float part_of(u32 row) const { return row_parts[__ldg(steps + row)]; }

    DEVICE void eight(u32 first, uint2 symbols, uint4 (&words)[COUNT]) const {
        u32 row = first / width, column = first % width;
        float part = part_of(row), values[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (column == width) {
                row++;
                column = 0;
                part = part_of(row);
            }
            values[i] = levels[(i < 4 ? symbols.x : symbols.y) >> 8 * (i % 4) & 0xff] * part;
            column++;
        }
        to_words<T>(values, words);
    }

    DEVICE u32 one(u32 at, u32 symbol) const { return bits_of<T>(levels[symbol] * part_of(at / width)); }
};

// Which of two quantizers a tile's numbers have, from the parities of those before: a linear code, of which 32 numbers
// are a few shifts.
struct Quantizers {
    u32 before = 0;

    DEVICE u32 next(u32 parities) {
        u32 past = parities ^ before >> 31 ^ before >> 26;
        // The 32nd power of 1 + x + x⁶ is one, of 32 numbers; so the 31st is what it is divided by.
#pragma unroll
        for (u32 doubled = 0; doubled < 5; doubled++) {
            const u32 near = past << (1 << doubled), far = doubled < 3 ? past << (6 << doubled) : 0;
            past ^= near ^ far;
        }
        const u32 second = past << 2 ^ before >> 30 ^ past << 4 ^ before >> 28;
        before = past;
        return second;
    }

    // Marks the symbols of a phase of the lane's whose numbers have the second one: words of four, with this stride.
    DEVICE void mark(u32 *words, u32 stride) {
        u32 parities = 0;
#pragma unroll
        for (u32 i = 0; i < PHASE / 4; i++) {
            // The four lowest bits of bytes, side by side.
            const u32 four = (words[i * stride] & 0x01010101u) * 0x10204080u >> 28;
            parities |= four << 4 * i;
        }
        const u32 second = next(parities);
#pragma unroll
        for (u32 i = 0; i < PHASE / 4; i++) {
            const u32 marks = ((second >> 4 * i & 15) * 0x00204081u & 0x01010101u) << 7;
            u32 &four = words[i * stride];
            four = (four & 0x7f7f7f7fu) | marks;
        }
    }
};

template <class T> DEVICE void decode_rate(T *out, const u8 *bytes, u32 width, u32 tile, const CodedChunk &chunk) {
    __shared__ RateShared shared;

    const Parts<Coding::rate> parts(bytes, chunk, width, tile, 0);
    if (blockIdx.x * DECODE_WARPS >= parts.strips) return;
    shared.build(parts.table);
    const u32 strip = blockIdx.x * DECODE_WARPS + threadIdx.x / WARP;
    if (strip >= parts.strips) return;
    const RateNumbers<T> numbers = {shared.levels, shared.row_parts, parts.steps, width};
    Quantizers quantizers;
    const auto mark = [&](SymbolStage &stage, u32 lane) { quantizers.mark(&stage.word(lane, 0), stage.STRIDE); };
    decode_strip(DecodedChunk<T>(out, chunk, width), numbers, parts, shared.huffman, strip, mark);
}
