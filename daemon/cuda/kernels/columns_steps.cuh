// How far a look at the next eleven bits of a stream goes, for each class of columns.

#pragma once

#include "bit_stream.cuh"
#include "columns_classes.cuh"

constexpr u32 COLUMN_KINDS = sizeof(COLUMN_CLASSES) / sizeof(ColumnClass);
constexpr u32 STEPS = 1u << CODE_BITS;

// The codes that are whole in eleven bits, until one that escapes; an escaping one alone where it is the first.
struct ColumnStep {
    // Bits of all codes in four bits, symbols of their words in five, bits of the first code in four, whether it escapes.
    u16 packed;

    DEVICE constexpr u32 bits() const { return packed & 15; }
    DEVICE constexpr u32 symbols() const { return packed >> 4 & 31; }
    DEVICE constexpr u32 first_bits() const { return packed >> 9 & 15; }
    DEVICE constexpr bool is_escape() const { return packed >> 13; }
};

// All of them, found by the compiler. Streams have a code's first bit lowest, and so do places in here.
struct ColumnSteps {
    // Codes of one step, and symbols of a word.
    static constexpr u32 CODES_MAX = 7, TOGETHER_MAX = 4;
    static_assert(CODES_MAX * TOGETHER_MAX < 32, "symbols of a step have five bits");
    u16 each[COLUMN_KINDS * STEPS];

    DEVICE constexpr ColumnSteps() : each{} {
        for (u32 kind = 0; kind < COLUMN_KINDS; kind++) {
            const ColumnClass &from = COLUMN_CLASSES[kind];
            // By codes whose first bit is the highest, as all are until the last line.
            u8 lengths[STEPS] = {};
            for (u32 code = 0, length = 1; code < STEPS; code++) {
                while (length < CODE_BITS && code >= from.limits[length - 1]) length++;
                lengths[code] = u8(length);
            }
            for (u32 code = 0, turned = 0; code < STEPS; code++) {
                u32 bits = 0, codes = 0;
                while (codes < CODES_MAX) {
                    const u32 next = code << bits & (STEPS - 1);
                    if (bits + lengths[next] > CODE_BITS || next - from.escape_first < from.escape_count) break;
                    bits += lengths[next];
                    codes++;
                }
                const bool escapes = codes == 0;
                if (escapes) {
                    bits = lengths[code];
                    codes = 1;
                }
                each[kind * STEPS + turned] =
                    u16(bits | codes * from.together << 4 | u32(lengths[code]) << 9 | u32(escapes) << 13);
                // One more, counted from the highest bit on.
                u32 bit = STEPS / 2;
                for (; turned & bit; bit /= 2) turned ^= bit;
                turned |= bit;
            }
        }
    }
};

__device__ constexpr ColumnSteps COLUMN_STEPS{};

// Those of a class.
struct ClassSteps {
    const u16 *each;

    DEVICE ClassSteps(u32 kind) : each(COLUMN_STEPS.each + kind * STEPS) {}

    DEVICE ColumnStep next(u32 bits) const { return {__ldg(each + bits % STEPS)}; }
};
