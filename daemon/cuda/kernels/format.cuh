// How weights are stored, and how a thread reads them: in runs of consecutive weights of a row, fetched as they lie and
// decoded later, so that the wait for memory can be spent on something else. A decoded number is the engine's, bit for
// bit.
//
// A format has
//   BLOCK, BYTES   weights that are stored together, and the bytes they take
//   RUN            weights of a run
//   Run            a run as it lies in memory
//   fetch          the run at column `at`, a multiple of RUN, of a row; a dense row must be aligned to 16 bytes
//   decode         the numbers it stands for

#pragma once

#include "number.cuh"

namespace format {

// Numbers side by side.
template <class T> struct Dense {
    static constexpr u32 BLOCK = 1;
    static constexpr u32 BYTES = sizeof(T);
    static constexpr u32 RUN = 16 / sizeof(T);
    struct Run {
        uint4 words;
    };

    static DEVICE Run fetch(const u8 *row, u32 at) {
        return {__ldg(reinterpret_cast<const uint4 *>(row) + at / RUN)};
    }

    static DEVICE void decode(const Run &run, float (&out)[RUN]) {
        const u32 words[4] = {run.words.x, run.words.y, run.words.z, run.words.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if constexpr (sizeof(T) == 4) {
                out[i] = __uint_as_float(words[i]);
            } else {
                out[2 * i] = from_bits<T>(words[i] & 0xffff);
                out[2 * i + 1] = from_bits<T>(words[i] >> 16);
            }
        }
    }
};

using f32 = Dense<float>;
using f16 = Dense<__half>;
using bf16 = Dense<__nv_bfloat16>;

// A small whole number as a float, less `zero`: exact, and cheaper than the conversion, of which a card does few at
// once. 2²³ and the number are one addition of bits.
DEVICE float whole(u32 number, float zero) { return __uint_as_float(0x4b000000u | number) - (8388608.0f + zero); }

DEVICE float half_at(const u8 *address) {
    return from_bits<__half>(__ldg(reinterpret_cast<const u16 *>(address)));
}

// 16 bytes from an even address, in words: one more where a word's middle is the start.
DEVICE uint4 load_even(const u8 *from) {
    u64 address = reinterpret_cast<u64>(from);
    const u32 *words = reinterpret_cast<const u32 *>(address & ~u64(3));
    u32 shift = u32(address & 2) * 8;
    u64 last = shift != 0 ? __ldg(words + 4) : 0;
    u64 joined[4] = {__ldg(words), __ldg(words + 1), __ldg(words + 2), __ldg(words + 3)};
    joined[0] |= joined[1] << 32;
    joined[1] |= joined[2] << 32;
    joined[2] |= joined[3] << 32;
    joined[3] |= last << 32;
    return {u32(joined[0] >> shift), u32(joined[1] >> shift), u32(joined[2] >> shift), u32(joined[3] >> shift)};
}

// Signed bytes times their block's scale.
struct q8_0 {
    static constexpr u32 BLOCK = 32;
    static constexpr u32 BYTES = 34;
    static constexpr u32 RUN = 16;
    struct Run {
        uint4 quants;
        float scale;
    };

    static DEVICE Run fetch(const u8 *row, u32 at) {
        const u8 *block = row + u64(at / BLOCK) * BYTES;
        return {load_even(block + 2 + at % BLOCK), half_at(block)};
    }

    static DEVICE void decode(const Run &run, float (&out)[RUN]) {
        const u32 words[4] = {run.quants.x, run.quants.y, run.quants.z, run.quants.w};
#pragma unroll
        for (u32 i = 0; i < RUN; i++) {
            // The flipped sign makes a byte its value plus 128.
            u32 quant = (words[i / 4] ^ 0x80808080u) >> 8 * (i % 4) & 0xff;
            out[i] = whole(quant, 128.0f) * run.scale;
        }
    }
};

// Six bits around 32, times one of 16 scales, times the block's: 128 bytes of low halves, 64 of high pairs, the scales,
// the scale above them.
struct q6_k {
    static constexpr u32 BLOCK = 256;
    static constexpr u32 BYTES = 210;
    static constexpr u32 RUN = 16;
    struct Run {
        uint4 low, high;
        float scale;
        // Where in the bytes the run's bits are.
        u32 low_shift, high_shift;
    };

    static DEVICE Run fetch(const u8 *row, u32 at) {
        const u8 *block = row + u64(at / BLOCK) * BYTES;
        u32 place = at % BLOCK;
        u32 part = place / 128, quarter = place % 128 / 32, lane = place % 32;
        float scale = float(static_cast<signed char>(__ldg(block + 192 + place / 16)));
        return {
            load_even(block + 64 * part + 32 * (quarter % 2) + lane),
            load_even(block + 128 + 32 * part + lane),
            half_at(block + 208) * scale,
            4 * (quarter / 2),
            2 * quarter,
        };
    }

    static DEVICE void decode(const Run &run, float (&out)[RUN]) {
        const u32 low[4] = {run.low.x, run.low.y, run.low.z, run.low.w};
        const u32 high[4] = {run.high.x, run.high.y, run.high.z, run.high.w};
#pragma unroll
        for (u32 i = 0; i < RUN; i++) {
            u32 half = low[i / 4] >> run.low_shift >> 8 * (i % 4) & 15;
            u32 two = high[i / 4] >> run.high_shift >> 8 * (i % 4) & 3;
            out[i] = run.scale * whole(half | two << 4, 32.0f);
        }
    }
};

// A group's scale and minimum.
struct Scaled {
    float scale, minimum;
};

// Those of one of eight groups, from the first 16 bytes of a block: scale and minimum above, and 12 bytes of six bits each.
DEVICE Scaled scaled_of(const uint4 &head, u32 group) {
    // The first four groups' six bits lie in a byte each, the others' in the halves of a byte and the two bits that the
    // first four leave.
    u32 shift = 8 * (group % 4);
    u32 scales = head.y >> shift, minima = head.z >> shift, halves = head.w >> shift;
    bool first = group < 4;
    u32 six = first ? scales & 63 : (halves & 15) | (scales >> 6 & 3) << 4;
    u32 six_of_minimum = first ? minima & 63 : (halves >> 4 & 15) | (minima >> 6 & 3) << 4;
    return {
        from_bits<__half>(head.x & 0xffff) * float(six),
        from_bits<__half>(head.x >> 16) * float(six_of_minimum),
    };
}

// Four bits times one of 8 scales, less one of 8 minima: scale and minimum above, 12 bytes of 6-bit scales and minima,
// 128 bytes of halves.
struct q4_k {
    static constexpr u32 BLOCK = 256;
    static constexpr u32 BYTES = 144;
    static constexpr u32 RUN = 16;
    struct Run {
        uint4 head, quants;
        // Which of the block's groups of 32 weights.
        u32 group;
    };

    static DEVICE Run fetch(const u8 *row, u32 at) {
        // A block is nine times 16 bytes, and rows are whole blocks: every part of it is aligned.
        const uint4 *block = reinterpret_cast<const uint4 *>(row) + u64(at / BLOCK) * (BYTES / 16);
        u32 place = at % BLOCK;
        return {__ldg(block), __ldg(block + 1 + 2 * (place / 64) + place % 32 / 16), place / 32};
    }

    static DEVICE void decode(const Run &run, float (&out)[RUN]) {
        const Scaled scaled = scaled_of(run.head, run.group);
        const u32 words[4] = {run.quants.x, run.quants.y, run.quants.z, run.quants.w};
        u32 half = 4 * (run.group % 2);
#pragma unroll
        for (u32 i = 0; i < RUN; i++) {
            out[i] = scaled.scale * whole(words[i / 4] >> half >> 8 * (i % 4) & 15, 0.0f) - scaled.minimum;
        }
    }
};

// 16 bytes in pieces of two, of which there are `count`; zeros after them. A loop rather than eight loads in a row: the
// way is rarely taken, and kernels have it many times.
DEVICE uint4 fetch_slowly(const u16 *from, u32 count) {
    uint4 words = {0, 0, 0, 0};
#pragma unroll 1
    for (u32 i = 8; i-- > 0;) {
        words.w = words.w << 16 | words.z >> 16;
        words.z = words.z << 16 | words.y >> 16;
        words.y = words.y << 16 | words.x >> 16;
        words.x = words.x << 16 | (i < count ? __ldg(from + i) : 0);
    }
    return words;
}

// The run at column `at` of a row of `width` numbers, wherever the row begins; columns beyond it are zeros.
template <class Format> DEVICE typename Format::Run fetch_within(const u8 *row, u32 at, u32 width) {
    if constexpr (Format::BLOCK == 1) {
        if (at + Format::RUN > width || (reinterpret_cast<u64>(row) & 15) != 0) {
            constexpr u32 HALVES = Format::BYTES / 2;
            const u16 *from = reinterpret_cast<const u16 *>(row) + at * HALVES;
            return {fetch_slowly(from, (width - min(width, at)) * HALVES)};
        }
    }
    return Format::fetch(row, at);
}

template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;

template <class Format> DEVICE u64 row_bytes(u32 width) { return u64(width / Format::BLOCK) * Format::BYTES; }

// Puts a run where 16-bit numbers are kept. `to` is aligned as far as what is written there, up to 16 bytes.
template <class T, class Format> DEVICE void store_run(T *to, const typename Format::Run &run) {
    if constexpr (same<Format, Dense<T>>) {
        *reinterpret_cast<uint4 *>(to) = run.words;
    } else {
        float values[Format::RUN];
        Format::decode(run, values);
        u32 words[Format::RUN / 2];
#pragma unroll
        for (u32 i = 0; i < Format::RUN / 2; i++) words[i] = pair<T>(values[2 * i], values[2 * i + 1]);
        if constexpr (Format::RUN == 4) {
            *reinterpret_cast<uint2 *>(to) = {words[0], words[1]};
        } else {
#pragma unroll
            for (u32 i = 0; i < Format::RUN / 8; i++) {
                reinterpret_cast<uint4 *>(to)[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
            }
        }
    }
}

} // namespace format

// Calls `MACRO(number, format)` for each format that is multiplied as it is.
#define FOR_EACH_FORMAT(MACRO, number) \
    MACRO(number, f32) \
    MACRO(number, f16) \
    MACRO(number, bf16) \
    MACRO(number, q8_0) \
    MACRO(number, q6_k) \
    MACRO(number, q4_k)
