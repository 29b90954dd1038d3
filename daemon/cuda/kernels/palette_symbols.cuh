// Symbols at a fixed rate: an index of four bits into sixteen of them.

#pragma once

#include "cuda_device.cuh"

// The index of symbols that the palette lacks.
constexpr u32 ESCAPE = 15;

// Four symbols by four indices, the lowest ones of a word. Permutations of bytes know eight, so there are two, and one
// that chooses: no memory is asked, and threads don't get into each other's way.
DEVICE u32 symbols_of(const uint4 &palette, u32 indices) {
    const u32 within = indices & 0x7777u;
    const u32 low = __byte_perm(palette.x, palette.y, within), high = __byte_perm(palette.z, palette.w, within);
    return __byte_perm(low, high, 0x3210u + (indices >> 1 & 0x4444u));
}

// A bit in each index that is an escape's.
DEVICE u32 escapes_in(u32 indices) {
    const u32 pairs = indices & indices >> 1;
    return pairs & pairs >> 2 & 0x11111111u;
}
