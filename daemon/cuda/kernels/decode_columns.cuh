// Numbers coded column by column. `columns` of the codec says what the bits stand for; this follows it number for number.
//
// A tile is eight columns in one stream of bits: where a column begins is known when the one before it is read. So a
// block takes a strip of 32 tiles twice. First one warp goes through its tiles, a lane each, looks at nothing but the
// codes' lengths, several codes at once, and notes where each column is. Then each lane of all warps decodes a column,
// and the lanes of a warp have neighbouring columns, so that they write a row's numbers side by side.
//
// On an H100 the first part takes three quarters of the time, since one warp waits for each of its steps: 1000 steps of
// 250 cycles. A warp for each strip would wait as long in the second part, where eight share the work now.

#pragma once

#include "columns_steps.cuh"
#include "decode_rate.cuh"

constexpr u32 STRIP_COLUMNS = STRIP_TILES * TILE_COLUMNS;
constexpr u32 COLUMN_ROWS_MAX = 256;
// What words have in the place of an escaped symbol, and the bits that it has after the column's codes.
constexpr u32 ESCAPED = 0x80, ESCAPED_BITS = 7;
// Wide columns have the classes from this one on, and up to so many low bits of each number as they are.
constexpr u32 WIDE_FIRST = 9, RAW_BITS_MAX = 4;
constexpr u32 WIDE_CLASSES = COLUMN_KINDS - WIDE_FIRST;

static_assert(COLUMN_CLASSES[WIDE_FIRST - 1].together > 1 && COLUMN_CLASSES[WIDE_FIRST].together == 1,
              "wide columns have the classes whose words have one symbol");
// Symbols whose levels are moved to means, and the first one.
constexpr u32 MEANS = 64, FIRST_MEAN = RATE_SYMBOLS / 2 - MEANS / 2;

static_assert(DECODE_WARPS * WARP == STRIP_COLUMNS, "each thread of a block has a column of a strip");

// A column of a strip.
struct ColumnPlace {
    // Where its codes begin, from the tile's first bit, and how many bits they have.
    u16 start, codes;
    // Its class and one, or 0 where all its numbers are zero; its step, in quarters of an octave.
    u8 kind;
    signed char step;
    // How many low bits of each number are before its codes, in a wide column.
    u8 raw_bits;
};

struct ColumnsShared {
    u32 rings[DECODE_WARPS][BitStream::RING * WARP];
    // By a class and one, and a symbol, in parts of a step: all zero where the class is. By a row.
    float levels[(1 + COLUMN_KINDS) * RATE_SYMBOLS];
    alignas(16) float factors[COLUMN_ROWS_MAX];
    ColumnPlace columns[STRIP_COLUMNS];
    u32 tile_starts[STRIP_TILES];
};

// The bits from `at` on. Beyond the codes come zeros.
DEVICE u64 bits_at(const Parts<Coding::columns> &parts, u64 at) {
    u32 words[3];
#pragma unroll
    for (u32 i = 0; i < 3; i++) {
        const u64 byte = (at / 32 + i) * 4;
        // What lies within the codes' padding of sixteen bytes.
        words[i] = byte <= u64(parts.limit) + 12 ? __ldg(reinterpret_cast<const u32 *>(parts.codes + byte)) : 0;
    }
    const u32 by = at % 32;
    return (u64(words[1]) << 32 | words[0]) >> by | u64(words[2]) << 32 << (32 - by);
}

// A number of a header by its gamma code, and the bits that this has.
struct HeaderNumber {
    int number;
    u32 bits;

    DEVICE HeaderNumber(u32 word) {
        constexpr u32 ZEROS_MAX = 9;
        const u32 zeros = min(u32(__ffs(int(word))) - 1, ZEROS_MAX);
        const u32 turned = (1u << zeros | (word >> (zeros + 1) & ((1u << zeros) - 1))) - 1;
        number = int(turned >> 1) ^ -int(turned & 1);
        bits = 2 * zeros + 1;
    }
};

// Class and step of the column before.
struct ColumnHeaders {
    int kind = 13, step = 0;

    // Reads a header into the column, and gives its bits. What no encoder writes becomes one that is possible.
    DEVICE u32 read(u64 word, ColumnPlace &column) {
        constexpr int STEP_MAX = 63, KIND_MAX = int(COLUMN_KINDS + RAW_BITS_MAX * WIDE_CLASSES);
        const HeaderNumber kinds{u32(word)};
        const int next = max(0, min(KIND_MAX, kind + kinds.number));
        // Wide columns come after the others: all classes with one low bit, then all with two, and so on.
        const u32 wide = u32(max(0, next - int(COLUMN_KINDS) - 1));
        const bool is_wide = next > int(COLUMN_KINDS);
        column.kind = u8(is_wide ? 1 + WIDE_FIRST + wide % WIDE_CLASSES : u32(next));
        column.raw_bits = u8(is_wide ? 1 + wide / WIDE_CLASSES : 0);
        column.step = 0;
        if (next == 0) return kinds.bits;
        const HeaderNumber steps{u32(word >> kinds.bits)};
        kind = next;
        step = max(-STEP_MAX, min(STEP_MAX, step + steps.number));
        column.step = static_cast<signed char>(step);
        return kinds.bits + steps.bits;
    }
};

// Notes where the columns of a strip are. One warp calls it, whose lanes have a tile each.
DEVICE void find_columns(const Parts<Coding::columns> &parts, ColumnsShared &shared, u32 strip, u32 width, u32 rows) {
    const u32 lane = threadIdx.x;
    const u32 start = place_of_tile(parts, strip, lane).start;
    shared.tile_starts[lane] = start;
    const u32 first = (strip * STRIP_TILES + lane) * TILE_COLUMNS;
    const u32 count = first < width ? min(TILE_COLUMNS, width - first) : 0;
    ColumnPlace *const columns = shared.columns + lane * TILE_COLUMNS;
    // Bits from the tile's first. Whatever they are, a tile has fewer than 2^16.
    u32 at = 0;
    ColumnHeaders headers;
    for (u32 column = 0; column < count; column++) {
        ColumnPlace &place = columns[column];
        at += headers.read(bits_at(parts, u64(start) * 8 + at), place);
        at += place.raw_bits * rows;
        place.start = u16(at);
        place.codes = 0;
        if (place.kind == 0) continue;
        const u32 kind = place.kind - 1, together = __ldg(&COLUMN_CLASSES[kind].together);
        const ClassSteps steps(kind);
        BitStream stream(parts.codes, parts.limit, shared.rings[0] + lane, start + at / 8, at % 8);
        u32 left = rows, escaped = 0, sum = 0;
        while (left > 0) {
            stream.read_codes([&](u32) {
                const ColumnStep step = steps.next(stream.next());
                u32 bits = step.bits(), some = step.symbols();
                // One by one where several are too many. What fills up the last word isn't there.
                if (some > left) {
                    bits = left == 0 ? 0 : step.first_bits();
                    some = min(together, left);
                }
                stream.skip(bits);
                sum += bits;
                if (step.is_escape()) escaped += some;
                left -= some;
            });
        }
        place.codes = u16(sum);
        at += sum + escaped * ESCAPED_BITS;
    }
}

// The symbols of the next code's word.
DEVICE u32 next_word(BitStream &stream, const ClassSteps &steps, u32 kind) {
    const u32 next = stream.next();
    const u32 length = steps.next(next).first_bits();
    const int code = int(__brev(next) >> (32 - length));
    stream.skip(length);
    return __ldg(COLUMN_WORDS + (code + __ldg(COLUMN_CLASSES[kind].starts + length)));
}

// The level of a wide column's number, in parts of a step: its symbol's integer with low bits put in above the lowest.
DEVICE float wide_level(u32 symbol, u32 raw, u32 raw_bits) {
    const int at = int(symbol) - int(RATE_SYMBOLS / 2);
    const int pair = (at >> 1) * int(1u << raw_bits) + int(raw & ((1u << raw_bits) - 1));
    return float((pair * 2 + (at & 1)) * 256 + 64);
}

// By what levels of a column are multiplied: a part of its step.
DEVICE float part_of_column(const Parts<Coding::columns> &parts, int step) {
    const u32 up = u32(step + 64), quarter = up % 4;
    const float ratio = quarter < 2 ? (quarter == 0 ? 1.0f : 1.1892071f)
                                    : (quarter == 2 ? 1.41421356237309504880f : 1.6817928f);
    const float part = __uint_as_float(__ldg(reinterpret_cast<const u32 *>(parts.table))) * (1.0f / 256.0f);
    return part * (ratio * __uint_as_float((127 - 16 + up / 4) << 23));
}

// Decodes a wide column of a strip, number by number: there are few of them, and what all of a column's numbers have at once
// would take more registers than there are.
template <class T>
DEVICE void write_wide_column(T *to, const Parts<Coding::columns> &parts, ColumnsShared &shared, u32 width, u32 rows) {
    const ColumnPlace place = shared.columns[threadIdx.x];
    const u32 tile_start = shared.tile_starts[threadIdx.x / TILE_COLUMNS], kind = place.kind - 1;
    BitStream stream(parts.codes, parts.limit, shared.rings[threadIdx.x / WARP] + threadIdx.x % WARP,
                     tile_start + place.start / 8, place.start % 8);
    const ClassSteps steps(kind);
    const float part = part_of_column(parts, place.step);
    const u64 tile_at = u64(tile_start) * 8;
    u32 raw_at = place.start - place.raw_bits * rows, escape_at = u32(place.start) + place.codes;
    // One bit for each number before, the last one's lowest: whether the parities up to it, divided by 1 + x + x⁶, are odd.
    u32 past = 0;
    for (u32 row = 0; row < rows;) {
        stream.read_one_by_one([&] {
            if (row == rows) return;
            u32 symbol = next_word(stream, steps, kind) & 255;
            if (symbol == ESCAPED) {
                symbol = u32(bits_at(parts, tile_at + escape_at)) & ((1u << ESCAPED_BITS) - 1);
                escape_at += ESCAPED_BITS;
            }
            const float level = wide_level(symbol, u32(bits_at(parts, tile_at + raw_at)), place.raw_bits);
            raw_at += place.raw_bits;
            const bool is_second = (past >> 1 ^ past >> 3) & 1;
            past = past << 1 | ((symbol ^ past ^ past >> 5) & 1);
            to[u64(row) * width] = narrow<T>((is_second ? -level : level) * part * shared.factors[row]);
            row++;
        });
    }
}

// Decodes a column of a strip for each thread of the block, from where it was found.
template <class T>
DEVICE void write_columns(T *out, const Parts<Coding::columns> &parts, ColumnsShared &shared, u32 strip, u32 width,
                          u32 rows) {
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 column = strip * STRIP_COLUMNS + threadIdx.x;
    if (column - lane >= width) return;
    const bool mine = column < width;
    const ColumnPlace place = mine ? shared.columns[threadIdx.x] : ColumnPlace{};
    if (place.raw_bits > 0) return write_wide_column(out + column, parts, shared, width, rows);
    const u32 tile_start = shared.tile_starts[threadIdx.x / TILE_COLUMNS];
    BitStream stream(parts.codes, parts.limit, shared.rings[warp] + lane, tile_start + place.start / 8, place.start % 8);
    const u32 kind = place.kind == 0 ? 0 : place.kind - 1;
    const float part = part_of_column(parts, place.step);
    const float *const levels = shared.levels + place.kind * RATE_SYMBOLS;
    // Escaped symbols follow the column's codes; those that come next, and how many bits of them were taken.
    u64 escape_at = u64(tile_start) * 8 + place.start + place.codes, escapes = bits_at(parts, escape_at);
    u32 taken = 0;
    const ClassSteps steps(kind);
    const u32 together = __ldg(&COLUMN_CLASSES[kind].together);
    T *const to = out + column;
    Quantizers quantizers;
    // Symbols of a word that were not taken yet.
    u32 word = 0, ready = 0;
    for (u32 first = 0; first < rows; first += PHASE) {
        u32 symbols[PHASE / 4];
#pragma unroll
        for (u32 half = 0; half < PHASE; half += BitStream::CODES) {
            stream.read_codes([&](u32 i) {
                if (ready == 0) {
                    word = next_word(stream, steps, kind);
                    ready = together;
                }
                u32 &four = symbols[(half + i) / 4];
                four = i % 4 == 0 ? word & 255 : four | (word & 255) << 8 * (i % 4);
                word >>= 8;
                ready--;
            });
        }
        // Those beyond the rows are the last ones, and nobody's.
#pragma unroll
        for (u32 i = 0; i < PHASE / 4; i++) {
            while (u32 escaped = symbols[i] & ESCAPED * 0x01010101u) {
                const u32 symbol = u32(escapes) & ((1u << ESCAPED_BITS) - 1);
                symbols[i] ^= (ESCAPED ^ symbol) << (__ffs(int(escaped)) - 8);
                escapes >>= ESCAPED_BITS;
                taken += ESCAPED_BITS;
                if (taken > 64 - ESCAPED_BITS) {
                    escape_at += taken;
                    taken = 0;
                    escapes = bits_at(parts, escape_at);
                }
            }
        }
        quantizers.mark(symbols, 1);
        // Those of a phase that has all its rows are written without looking at each.
        const auto write = [&](u32 i, float factor) {
            const u32 marked = symbols[i / 4] >> 8 * (i % 4) & 0xff;
            const float level = levels[marked % RATE_SYMBOLS];
            // Not its negative: where it is zero, that is the zero that integers have.
            const float value = (marked < RATE_SYMBOLS ? level : 0.0f - level) * part * factor;
            to[u64(first + i) * width] = narrow<T>(value);
        };
        if (!mine) continue;
        if (first + PHASE <= rows) {
#pragma unroll
            for (u32 i = 0; i < PHASE; i += 4) {
                const float4 factors = *reinterpret_cast<const float4 *>(shared.factors + first + i);
                write(i, factors.x);
                write(i + 1, factors.y);
                write(i + 2, factors.z);
                write(i + 3, factors.w);
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < PHASE; i++) {
                if (first + i < rows) write(i, shared.factors[first + i]);
            }
        }
    }
}

template <class T> DEVICE void decode_columns(T *out, const u8 *bytes, u32 width, u32 tile, const CodedChunk &chunk) {
    __shared__ ColumnsShared shared;

    const Parts<Coding::columns> parts(bytes, chunk, width, tile, 0);
    if (blockIdx.x >= parts.strips) return;
    for (u32 i = threadIdx.x; i < COLUMN_KINDS * RATE_SYMBOLS; i += blockDim.x) {
        const u32 symbol = i % RATE_SYMBOLS, mean = symbol - FIRST_MEAN;
        const float moved = mean < MEANS ? float(__ldg(COLUMN_MEANS + i / RATE_SYMBOLS * MEANS + mean)) : 0.0f;
        shared.levels[RATE_SYMBOLS + i] = point_of(symbol) * 256.0f + moved;
    }
    for (u32 i = threadIdx.x; i < RATE_SYMBOLS; i += blockDim.x) shared.levels[i] = 0.0f;
    for (u32 i = threadIdx.x; i < chunk.rows; i += blockDim.x) shared.factors[i] = row_ratio(__ldg(parts.steps + i));
    if (threadIdx.x < WARP) find_columns(parts, shared, blockIdx.x, width, chunk.rows);
    __syncthreads();
    write_columns(out + u64(chunk.first_row) * width, parts, shared, blockIdx.x, width, chunk.rows);
}

#define DECODE_COLUMNS_KERNEL(T) \
    KERNEL_FUNCTION __launch_bounds__(DECODE_WARPS *WARP, 4) decode_columns_##T( \
        number::T *out, const u8 *bytes, u32 width, u32 tile, CodedChunks chunks) { \
        decode_columns<number::T>(out, bytes, width, tile, chunks.each[blockIdx.y]); \
    }
