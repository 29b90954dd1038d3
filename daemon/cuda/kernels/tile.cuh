// Tiles of matrices on their way into shared memory, and results on their way out of it.

#pragma once

#include "format.cuh"

// What a block's threads hold of a tile of ROWS rows and COLUMNS columns, as it lies in the matrix. It is fetched while
// the tile before is multiplied, and decoded when that is done.
template <class Format, u32 ROWS, u32 COLUMNS, u32 THREADS> struct Share {
    static constexpr u32 RUNS_OF_ROW = COLUMNS / Format::RUN;
    static constexpr u32 RUNS = ROWS * RUNS_OF_ROW / THREADS;
    static_assert(RUNS * THREADS == ROWS * RUNS_OF_ROW, "threads share a tile evenly");

    typename Format::Run runs[RUNS];

    static DEVICE u32 row(u32 run) { return (threadIdx.x + run * THREADS) / RUNS_OF_ROW; }
    static DEVICE u32 column(u32 run) { return (threadIdx.x + run * THREADS) % RUNS_OF_ROW * Format::RUN; }

    // The tile from column `at` of the rows at `rows`, of which there are `count`; beyond these, and beyond the width,
    // all is zero.
    DEVICE void fetch(const u8 *rows, u64 row_bytes, u32 count, u32 at, u32 width) {
#pragma unroll
        for (u32 i = 0; i < RUNS; i++) {
            runs[i] = {};
            if (row(i) < count && at + column(i) < width) {
                runs[i] = format::fetch_within<Format>(rows + row(i) * row_bytes, at + column(i), width);
            }
        }
    }

    // Row after row, `stride` numbers of 16 bits apart.
    template <class T> DEVICE void store(T *tile, u32 stride) const {
#pragma unroll
        for (u32 i = 0; i < RUNS; i++) format::store_run<T, Format>(tile + row(i) * stride + column(i), runs[i]);
    }

    // Column after column, `stride` numbers apart.
    DEVICE void store_across(float *tile, u32 stride) const {
#pragma unroll
        for (u32 i = 0; i < RUNS; i++) {
            float values[Format::RUN];
            Format::decode(runs[i], values);
#pragma unroll
            for (u32 j = 0; j < Format::RUN; j++) tile[(column(i) + j) * stride + row(i)] = values[j];
        }
    }
};

// Puts a tile of a matrix of T in shared memory at once, as it is: for what is read once, or too large to be held. The
// parameters are those of `Share`; rows lie `stride` numbers apart, whole times 16 bytes.
template <class T, u32 ROWS, u32 COLUMNS, u32 THREADS>
DEVICE void copy_tile(T *tile, u32 stride, const T *rows, u64 row_bytes, u32 count, u32 at, u32 width) {
    using Numbers = format::Dense<T>;
#pragma unroll 2
    for (u32 i = threadIdx.x; i < ROWS * COLUMNS / Numbers::RUN; i += THREADS) {
        const u32 row = i * Numbers::RUN / COLUMNS, column = i * Numbers::RUN % COLUMNS;
        typename Numbers::Run run = {};
        if (row < count && at + column < width) {
            const u8 *from = reinterpret_cast<const u8 *>(rows) + row * row_bytes;
            run = format::fetch_within<Numbers>(from, at + column, width);
        }
        *reinterpret_cast<uint4 *>(tile + row * stride + column) = run.words;
    }
}

// Four numbers of shared memory at once. As words: floats the compiler takes apart and joins again, seldom the same way
// twice, and the PTX would change with it.
DEVICE void four_at(const float *from, float *to) {
    const uint4 words = *reinterpret_cast<const uint4 *>(from);
    to[0] = __uint_as_float(words.x);
    to[1] = __uint_as_float(words.y);
    to[2] = __uint_as_float(words.z);
    to[3] = __uint_as_float(words.w);
}

// A sum, added to what is at `old` or, with a beta of 0, in its place: then nothing is read, which may be no number.
DEVICE float accumulated(float sum, float beta, const float *old) { return beta == 0.0f ? sum : sum + beta * *old; }

// Where a multiplication's results go: numbers of type T, or `f32` to which they may be added. Rows begin `stride` numbers
// apart.
template <class T> struct Output {
    void *numbers;
    bool is_f32;
    u32 stride;
    float beta;

    DEVICE void put(u32 row, u32 output, float value) const {
        const u64 at = u64(row) * stride + output;
        if (is_f32) {
            float *to = static_cast<float *>(numbers) + at;
            *to = accumulated(value, beta, to);
        } else {
            static_cast<T *>(numbers)[at] = narrow<T>(value);
        }
    }
};
