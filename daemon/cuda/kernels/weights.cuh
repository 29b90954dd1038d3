// Weights as multiplications read them. What holds weights has
//   RUN, Run, fetch, decode   runs of a row, as a format has them
//   Tile                      what a block's threads hold of a tile of rows on its way into shared memory
//   add_rest                  what a warp adds to the sums of few rows when it has gone along the width

#pragma once

#include "tile.cuh"

// Weights that are stored row after row.
template <class Format> struct Stored {
    static constexpr u32 RUN = Format::RUN;
    using Run = typename Format::Run;

    const u8 *bytes;
    u32 outputs, width;

    DEVICE Run fetch(u32 row, u32 at) const { return Format::fetch(bytes + row * format::row_bytes<Format>(width), at); }

    DEVICE void decode(const Run &run, float (&out)[RUN]) const { Format::decode(run, out); }

    template <u32 ROWS, u32 COLUMNS, u32 THREADS> struct Tile {
        const Stored &of;
        u32 first;
        Share<Format, ROWS, COLUMNS, THREADS> share;

        DEVICE Tile(const Stored &of, u32 first) : of(of), first(first) {}

        DEVICE void fetch(u32 at) {
            const u64 row_bytes = format::row_bytes<Format>(of.width);
            share.fetch(of.bytes + first * row_bytes, row_bytes, of.outputs - first, at, of.width);
        }

        template <class T> DEVICE void store(T *tile, u32 stride) { share.store(tile, stride); }

        DEVICE void store_across(float *tile, u32 stride) { share.store_across(tile, stride); }
    };

    template <class T, u32 OUTPUTS, u32 ROWS>
    DEVICE void add_rest(float (&)[OUTPUTS * ROWS], const T *, u32, u32, u32) const {}
};
