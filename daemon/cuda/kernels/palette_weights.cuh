// Weights in palette-coded chunks of bf16, multiplied without being decoded first: four bits and a raw byte a number. What
// the palette lacks, some numbers in ten thousand, is in an index that was made when the weights came to the card.

#pragma once

#include "decode.cuh"
#include "palette_symbols.cuh"
#include "weights.cuh"

// Rows of every chunk but the last: whole tiles of all shapes.
constexpr u32 CHUNK_ROWS = 256;

// Where a chunk's parts are, from the matrix's first byte on; as `kernels/palette.rs` lays it out.
struct PaletteChunk {
    u64 table, codes, raw;
};

struct PaletteChunks {
    PaletteChunk each[128];
};

// The numbers that a palette lacks, row by row: the column above, the number below. After a row's last one stands NONE, which
// is beyond every column.
struct EscapeIndex {
    static constexpr u32 NONE = 0xffffffffu;
    // Where each row's begin, and one more.
    const u32 *starts;
    const u32 *escapes;
};

// The rows of one chunk. They are whole times 16 numbers.
struct Palette {
    static constexpr u32 RUN = 16;
    struct Run {
        uint2 indices;
        uint4 raw;
    };

    const u8 *codes, *raw;
    uint4 symbols;
    EscapeIndex index;
    u32 outputs, width;

    DEVICE Palette(const u8 *bytes, const PaletteChunk &chunk, EscapeIndex index, u32 outputs, u32 width)
        : codes(bytes + chunk.codes), raw(bytes + chunk.raw),
          symbols(__ldg(reinterpret_cast<const uint4 *>(bytes + chunk.table))), index(index), outputs(outputs),
          width(width) {
        // An escape stands for what has no exponent: less than adds anything, until the number itself takes its place.
        symbols.w &= 0xffffffu;
    }

    DEVICE Run fetch(u32 row, u32 at) const {
        const u32 run = (row % CHUNK_ROWS * width + at) / RUN;
        return {__ldg(reinterpret_cast<const uint2 *>(codes) + run), __ldg(reinterpret_cast<const uint4 *>(raw) + run)};
    }

    // Two numbers a word.
    DEVICE void words_of(const Run &run, u32 (&words)[RUN / 2]) const {
        const u32 indices[2] = {run.indices.x, run.indices.y};
        const u32 rest[4] = {run.raw.x, run.raw.y, run.raw.z, run.raw.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 four = symbols_of(symbols, indices[i / 2] >> 16 * (i % 2));
            const uint2 pairs = Lossless<__nv_bfloat16, __nv_bfloat16>::four(four, rest[i]);
            words[2 * i] = pairs.x;
            words[2 * i + 1] = pairs.y;
        }
    }

    DEVICE void decode(const Run &run, float (&out)[RUN]) const {
        u32 words[RUN / 2];
        words_of(run, words);
#pragma unroll
        for (u32 i = 0; i < RUN; i++) out[i] = from_bits<__nv_bfloat16>(words[i / 2] >> 16 * (i % 2) & 0xffff);
    }

    // A thread has one run of each tile, always of the same row. So it knows that row's next escape, and puts it into the
    // tile itself when its column comes: nobody waits for anybody. The one after it is loaded long before it is looked at.
    template <u32 ROWS, u32 COLUMNS, u32 THREADS> struct Tile {
        static constexpr u32 RUNS_OF_ROW = COLUMNS / RUN;
        static_assert(ROWS * RUNS_OF_ROW == THREADS, "a thread has a run");

        const Palette &of;
        u32 row, column, output;
        Run run;
        bool there = false;
        u32 at = 0;
        const u32 *next;
        u32 escape, following;

        DEVICE Tile(const Palette &of, u32 first)
            : of(of), row(threadIdx.x / RUNS_OF_ROW), column(threadIdx.x % RUNS_OF_ROW * RUN), output(first + row) {
            next = of.index.escapes + __ldg(of.index.starts + min(output, of.outputs - 1));
            escape = __ldg(next);
            following = __ldg(next + 1);
        }

        DEVICE void fetch(u32 from) {
            at = from;
            there = output < of.outputs && at + column < of.width;
            if (there) run = of.fetch(output, at + column);
        }

        template <class T> DEVICE void store(T *tile, u32 stride) {
            T *to = tile + row * stride + column;
            u32 words[RUN / 2] = {};
            if (there) {
                of.words_of(run, words);
                if constexpr (!format::same<T, __nv_bfloat16>) {
#pragma unroll
                    for (u32 i = 0; i < RUN / 2; i++) {
                        words[i] = pair<T>(from_bits<__nv_bfloat16>(words[i] & 0xffff),
                                           from_bits<__nv_bfloat16>(words[i] >> 16));
                    }
                }
            }
            reinterpret_cast<uint4 *>(to)[0] = {words[0], words[1], words[2], words[3]};
            reinterpret_cast<uint4 *>(to)[1] = {words[4], words[5], words[6], words[7]};
            each_escape([&](u32 place, u32 number) { to[place] = narrow<T>(from_bits<__nv_bfloat16>(number)); });
        }

        DEVICE void store_across(float *tile, u32 stride) {
            float *to = tile + column * stride + row;
            float values[RUN] = {};
            if (there) of.decode(run, values);
#pragma unroll
            for (u32 i = 0; i < RUN; i++) to[i * stride] = values[i];
            each_escape([&](u32 place, u32 number) { to[place * stride] = from_bits<__nv_bfloat16>(number); });
        }

        // Those of the run that was fetched, by their place in it; those before it are passed by.
        template <class Put> DEVICE void each_escape(Put put) {
            while (escape >> 16 < at + column + RUN && escape != EscapeIndex::NONE) {
                const u32 place = (escape >> 16) - (at + column);
                if (place < RUN && output < of.outputs) put(place, escape & 0xffff);
                escape = following;
                next++;
                // Behind the last row's NONE stands another one.
                if (escape != EscapeIndex::NONE) following = __ldg(next + 1);
            }
        }
    };

    // What the sums of few rows lack: the escapes' products.
    template <class T, u32 OUTPUTS, u32 ROWS>
    DEVICE void add_rest(float (&sums)[OUTPUTS * ROWS], const T *x, u32 rows, u32 first, u32 lane) const {
#pragma unroll
        for (u32 o = 0; o < OUTPUTS; o++) {
            const u32 *start = index.starts + min(first + o, outputs - 1);
            const u32 end = __ldg(start + 1) - 1;
#pragma unroll 1
            for (u32 i = __ldg(start) + lane; i < end; i += WARP) {
                const u32 escape = __ldg(index.escapes + i);
                const float weight = from_bits<__nv_bfloat16>(escape & 0xffff);
#pragma unroll
                for (u32 r = 0; r < ROWS; r++) {
                    if (r >= rows) continue;
                    const float value = widen(x[u64(r) * width + (escape >> 16)]);
                    sums[o * ROWS + r] = fmaf(value, weight, sums[o * ROWS + r]);
                }
            }
        }
    }
};

#define PALETTE_PARAMETERS(T) \
    (void *out, u32 out_is_f32, const number::T *x, const u8 *bytes, const u32 *starts, const u32 *escapes, u32 rows, \
     u32 outputs, u32 width, u32 out_stride, float beta, PaletteChunks chunks)

// The weights of a block whose first output is `first`.
#define PALETTE_OF(first) \
    Palette(bytes, chunks.each[min(u32(first), outputs - 1) / CHUNK_ROWS], {starts, escapes}, outputs, width)
