// Symbols by a palette: a warp takes 256 numbers at a time, each lane eight that lie side by side.

#pragma once

#include "decode.cuh"
#include "palette_symbols.cuh"

// Puts symbols that the palette lacks where indices say so, in the order in which they come. Of more escapes than the tile
// has the first ones are taken; where there are too few, symbols stay what they are. `place` is the lane's tile's, `at` the
// lane's first number in it, `rank` the tile's escapes before it.
DEVICE uint2 with_escapes(uint2 symbols, u32 indices, const u8 *escapes, const TilePlace &place, u32 at, u32 rank) {
    u32 words[2] = {symbols.x, symbols.y};
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const bool escaped = (indices >> 4 * i & 15) == ESCAPE;
        const u32 from = place.whole ? at + i : rank;
        if ((place.whole || escaped) && from < place.bytes) {
            const u32 symbol = __ldg(escapes + place.start + from);
            words[i / 4] = (words[i / 4] & ~(0xffu << 8 * (i % 4))) | symbol << 8 * (i % 4);
        }
        rank += escaped ? 1 : 0;
    }
    return {words[0], words[1]};
}

template <class T, class Source>
DEVICE void decode_palette(T *out, const u8 *bytes, u32 width, u32 tile, const CodedChunk &chunk) {
    using Numbers = Lossless<T, Source>;
    constexpr u32 AT_ONCE = 8 * WARP;

    const Parts<Coding::palette> parts(bytes, chunk, width, tile, Numbers::RAW_BYTES);
    const u32 strip = blockIdx.x * DECODE_WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (strip >= parts.strips) return;
    const DecodedChunk<T> to(out, chunk, width);
    const Numbers numbers{parts.raw};
    const uint4 palette = __ldg(reinterpret_cast<const uint4 *>(parts.table));
    const TilePlace places = place_of_tile(parts, strip, lane);
    const u32 strip_first = strip * STRIP_TILES * tile;
    // Escapes of a tile in the numbers before.
    u32 before = 0;
    for (u32 at = 0; at < STRIP_TILES * tile && strip_first + at < parts.numbers; at += AT_ONCE) {
        const u32 first = strip_first + at + lane * 8;
        const bool full = to.aligned && strip_first + at + AT_ONCE <= parts.numbers;
        u32 indices = 0;
        if (full) {
            indices = __ldg(reinterpret_cast<const u32 *>(parts.codes) + first / 8);
        } else {
#pragma unroll 1
            for (u32 i = 0; i < 8 && first + i < parts.numbers; i += 2) {
                indices |= u32(__ldg(parts.codes + (first + i) / 2)) << 4 * i;
            }
        }
        uint2 symbols = {symbols_of(palette, indices), symbols_of(palette, indices >> 16)};
        // These are one tile, a part of it, or two.
        const u32 low_tile = at / tile, high_tile = (at + AT_ONCE - 1) / tile, own_tile = (at + lane * 8) / tile;
        const u32 any = __shfl_sync(0xffffffffu, places.bytes, low_tile) |
                        __shfl_sync(0xffffffffu, places.bytes, high_tile);
        if (any != 0) {
            const u32 count = __popc(escapes_in(indices));
            u32 sum = count;
#pragma unroll
            for (u32 by = 1; by < WARP; by *= 2) {
                const u32 more = __shfl_up_sync(0xffffffffu, sum, by);
                if (lane >= by) sum += more;
            }
            const u32 of_lower = __shfl_sync(0xffffffffu, sum, WARP / 2 - 1);
            const u32 of_all = __shfl_sync(0xffffffffu, sum, WARP - 1);
            const u32 rank = (at % tile == 0 ? 0 : before) + sum - count - (own_tile > low_tile ? of_lower : 0);
            const TilePlace place = {
                __shfl_sync(0xffffffffu, places.start, own_tile),
                __shfl_sync(0xffffffffu, places.bytes, own_tile),
                __shfl_sync(0xffffffffu, u32(places.whole), own_tile) != 0,
            };
            symbols = with_escapes(symbols, indices, parts.escapes, place, (at + lane * 8) % tile, rank);
            before = of_all;
        }
        write_eights(to.out, numbers, first, parts.numbers, symbols, full);
    }
}
