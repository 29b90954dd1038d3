// Numbers on their way to memory in whole sectors of 32 bytes.

#pragma once

#include "number.cuh"

// A pair of neighbouring lanes writes what both have, COUNT times 16 bytes each, the even lane's first. A lane alone would
// fill half a sector at a time, and the card's cache would take twice as many writes; so lanes hand each other halves.
// All lanes of a warp call it; `to` is where the pair's numbers go, and null where they go nowhere.
template <u32 COUNT> DEVICE void store_of_pair(uint4 *to, const uint4 (&mine)[COUNT]) {
    const u32 odd = threadIdx.x % 2;
#pragma unroll
    for (u32 i = 0; i < COUNT; i += 2) {
        const uint4 given = odd != 0 ? mine[i] : mine[i + 1];
        const uint4 kept = odd != 0 ? mine[i + 1] : mine[i];
        uint4 got;
        got.x = __shfl_xor_sync(0xffffffffu, given.x, 1);
        got.y = __shfl_xor_sync(0xffffffffu, given.y, 1);
        got.z = __shfl_xor_sync(0xffffffffu, given.z, 1);
        got.w = __shfl_xor_sync(0xffffffffu, given.w, 1);
        if (to != nullptr) {
            to[i + odd] = odd != 0 ? got : kept;
            to[COUNT + i + odd] = odd != 0 ? kept : got;
        }
    }
}

// Numbers as words of memory.
template <class T, u32 COUNT> DEVICE void to_words(const float (&values)[COUNT], uint4 (&words)[COUNT * sizeof(T) / 16]) {
    constexpr u32 EACH = 16 / sizeof(T);
#pragma unroll
    for (u32 i = 0; i < COUNT / EACH; i++) {
        const float *from = values + EACH * i;
        if constexpr (sizeof(T) == 4) {
            words[i] = {__float_as_uint(from[0]), __float_as_uint(from[1]), __float_as_uint(from[2]),
                        __float_as_uint(from[3])};
        } else {
            words[i] = {pair<T>(from[0], from[1]), pair<T>(from[2], from[3]), pair<T>(from[4], from[5]),
                        pair<T>(from[6], from[7])};
        }
    }
}
