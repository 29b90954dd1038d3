// The formats of files that are decoded before they are multiplied: `format.cuh` says what a format has.

#pragma once

#include "format.cuh"

namespace format {

// Four bits of each of 16 bytes, and a fifth: bit i of `high` is weight i's. Whole numbers less `zero`.
DEVICE void five_bits(const uint4 &halves, u32 shift, u32 high, float zero, float (&out)[16]) {
    const u32 words[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        out[i] = whole((words[i / 4] >> shift >> 8 * (i % 4) & 15) | (high >> i & 1) << 4, zero);
    }
}

// Blocks of 32 weights: a scale, a minimum in some, 32 high bits in some, and 16 bytes of halves, the low ones first.
template <bool HAS_MINIMUM, bool HAS_HIGH_BITS> struct Small {
    static constexpr u32 BLOCK = 32;
    static constexpr u32 HIGH_BITS_AT = HAS_MINIMUM ? 4 : 2;
    static constexpr u32 HALVES_AT = HIGH_BITS_AT + (HAS_HIGH_BITS ? 4 : 0);
    static constexpr u32 BYTES = HALVES_AT + 16;
    static constexpr u32 RUN = 16;
    // What a weight without a minimum is counted from.
    static constexpr float ZERO = HAS_MINIMUM ? 0.0f : HAS_HIGH_BITS ? 16.0f : 8.0f;
    struct Run {
        uint4 halves;
        float scale, minimum;
        u32 shift, high;
    };

    static DEVICE Run fetch(const u8 *row, u32 at) {
        const u8 *block = row + u64(at / BLOCK) * BYTES;
        const u32 second = at % BLOCK / RUN;
        Run run = {load_even(block + HALVES_AT), half_at(block), 0.0f, 4 * second, 0};
        if constexpr (HAS_MINIMUM) run.minimum = half_at(block + 2);
        if constexpr (HAS_HIGH_BITS) {
            run.high = __ldg(reinterpret_cast<const u16 *>(block + HIGH_BITS_AT) + second);
        }
        return run;
    }

    static DEVICE void decode(const Run &run, float (&out)[RUN]) {
        five_bits(run.halves, run.shift, run.high, ZERO, out);
#pragma unroll
        for (u32 i = 0; i < RUN; i++) {
            out[i] = out[i] * run.scale;
            if constexpr (HAS_MINIMUM) out[i] = out[i] + run.minimum;
        }
    }
};

using q4_0 = Small<false, false>;
using q4_1 = Small<true, false>;
using q5_0 = Small<false, true>;
using q5_1 = Small<true, true>;

// Five bits times one of 8 scales, less one of 8 minima: scale and minimum above, 12 bytes of 6-bit scales and minima,
// 32 bytes of high bits, 128 bytes of halves.
struct q5_k {
    static constexpr u32 BLOCK = 256;
    static constexpr u32 BYTES = 176;
    static constexpr u32 RUN = 16;
    struct Run {
        uint4 head, high, halves;
        // Which of the block's groups of 32 weights.
        u32 group;
    };

    static DEVICE Run fetch(const u8 *row, u32 at) {
        // A block is eleven times 16 bytes, and rows are whole blocks: every part of it is aligned.
        const uint4 *block = reinterpret_cast<const uint4 *>(row) + u64(at / BLOCK) * (BYTES / 16);
        const u32 place = at % BLOCK, lane = place % 32 / 16;
        return {__ldg(block), __ldg(block + 1 + lane), __ldg(block + 3 + 2 * (place / 64) + lane), place / 32};
    }

    static DEVICE void decode(const Run &run, float (&out)[RUN]) {
        const Scaled scaled = scaled_of(run.head, run.group);
        const u32 high[4] = {run.high.x, run.high.y, run.high.z, run.high.w};
        const u32 halves[4] = {run.halves.x, run.halves.y, run.halves.z, run.halves.w};
        const u32 shift = 4 * (run.group % 2);
#pragma unroll
        for (u32 i = 0; i < RUN; i++) {
            const u32 half = halves[i / 4] >> shift >> 8 * (i % 4) & 15;
            const u32 bit = high[i / 4] >> run.group >> 8 * (i % 4) & 1;
            out[i] = scaled.scale * whole(half | bit << 4, 0.0f) - scaled.minimum;
        }
    }
};

// Three bits around 4, times one of 16 scales around 32, times the block's: 32 bytes of high bits, 64 of pairs, 12 of
// 6-bit scales, the scale above them.
struct q3_k {
    static constexpr u32 BLOCK = 256;
    static constexpr u32 BYTES = 110;
    static constexpr u32 RUN = 16;
    struct Run {
        uint4 high, pairs;
        float scale;
        // Which of the block's groups of 32 weights.
        u32 group;
    };

    static DEVICE Run fetch(const u8 *row, u32 at) {
        const u8 *block = row + u64(at / BLOCK) * BYTES;
        const u32 place = at % BLOCK, lane = place % 32, scale = place / 16;
        const u8 *scales = block + 96;
        // Four bits in eight bytes' halves, the two above them in four more.
        const u32 low = __ldg(scales + scale % 8) >> 4 * (scale / 8) & 15;
        const u32 high = __ldg(scales + 8 + scale % 4) >> 2 * (scale / 4) & 3;
        return {
            load_even(block + lane),
            load_even(block + 32 + 32 * (place / 128) + lane),
            half_at(block + 108) * whole(low | high << 4, 32.0f),
            place / 32,
        };
    }

    static DEVICE void decode(const Run &run, float (&out)[RUN]) {
        const u32 high[4] = {run.high.x, run.high.y, run.high.z, run.high.w};
        const u32 pairs[4] = {run.pairs.x, run.pairs.y, run.pairs.z, run.pairs.w};
#pragma unroll
        for (u32 i = 0; i < RUN; i++) {
            const u32 pair = pairs[i / 4] >> 2 * (run.group % 4) >> 8 * (i % 4) & 3;
            // A high bit that isn't set takes four away.
            const u32 bit = high[i / 4] >> run.group >> 8 * (i % 4) & 1;
            out[i] = run.scale * whole(pair | bit << 2, 4.0f);
        }
    }
};

// Two bits times one of 16 scales, less one of 16 minima: 16 bytes of 4-bit scales and minima, 64 of pairs, scale and
// minimum above.
struct q2_k {
    static constexpr u32 BLOCK = 256;
    static constexpr u32 BYTES = 84;
    static constexpr u32 RUN = 16;
    struct Run {
        uint4 pairs;
        float scale, minimum;
        u32 shift;
    };

    static DEVICE Run fetch(const u8 *row, u32 at) {
        const u8 *block = row + u64(at / BLOCK) * BYTES;
        const u32 place = at % BLOCK, both = __ldg(block + place / 16);
        return {
            load_even(block + 16 + 32 * (place / 128) + place % 32),
            half_at(block + 80) * whole(both & 15, 0.0f),
            half_at(block + 82) * whole(both >> 4, 0.0f),
            place / 32 % 4 * 2,
        };
    }

    static DEVICE void decode(const Run &run, float (&out)[RUN]) {
        const u32 pairs[4] = {run.pairs.x, run.pairs.y, run.pairs.z, run.pairs.w};
#pragma unroll
        for (u32 i = 0; i < RUN; i++) {
            out[i] = run.scale * whole(pairs[i / 4] >> run.shift >> 8 * (i % 4) & 3, 0.0f) - run.minimum;
        }
    }
};

} // namespace format

// Calls `MACRO(number, format)` for each of them.
#define FOR_EACH_DECODED_FORMAT(MACRO, number) \
    MACRO(number, q5_k) \
    MACRO(number, q5_1) \
    MACRO(number, q5_0) \
    MACRO(number, q4_1) \
    MACRO(number, q4_0) \
    MACRO(number, q3_k) \
    MACRO(number, q2_k)
