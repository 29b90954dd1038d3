// Numbers coded column by column. `columns` of the codec says what the bits stand for; this follows it number for number.
//
// A tile is eight columns in one stream of bits: where a column begins is known when the one before it is read. So a
// block takes a strip of 32 tiles twice. First one warp goes through its tiles, a lane each, looks at nothing but the
// codes' lengths, and notes where each column is. Then each lane of all warps decodes a column, and the lanes of a warp
// have neighbouring columns, so that they write a row's numbers side by side.

#pragma once

#include "columns_classes.cuh"
#include "decode_rate.cuh"

constexpr u32 STRIP_COLUMNS = STRIP_TILES * TILE_COLUMNS;
constexpr u32 COLUMN_ROWS_MAX = 256;
constexpr u32 COLUMN_KINDS = sizeof(COLUMN_CLASSES) / sizeof(ColumnClass);
// What words have in the place of an escaped symbol, and the bits that it has after the column's codes.
constexpr u32 ESCAPED = 0x80, ESCAPED_BITS = 7;

static_assert(DECODE_WARPS * WARP == STRIP_COLUMNS, "each thread of a block has a column of a strip");

// A column of a strip.
struct ColumnPlace {
    // Where its codes begin, from the tile's first bit, and how many bits they have.
    u16 start, codes;
    // Its class and one, or 0 where all its numbers are zero; its step, in quarters of an octave.
    u8 kind;
    signed char step;
};

struct ColumnsShared {
    u32 rings[DECODE_WARPS][BitStream::RING * WARP];
    SymbolStage stages[DECODE_WARPS];
    // By a symbol, in parts of a step; by a row.
    float points[RATE_SYMBOLS], factors[COLUMN_ROWS_MAX];
    ColumnPlace columns[STRIP_COLUMNS];
    u32 tile_starts[STRIP_TILES];
};

// The code of a class.
struct ColumnCodes {
    u32 limits[5];
    u32 escape_first, escape_count, together;
    const int *starts;

    DEVICE ColumnCodes(u32 kind) {
        const ColumnClass &from = COLUMN_CLASSES[kind == 0 ? 0 : kind - 1];
#pragma unroll
        for (u32 i = 0; i < 5; i++) limits[i] = __ldg(from.limits + i);
        escape_first = __ldg(&from.escape_first);
        escape_count = __ldg(&from.escape_count);
        together = __ldg(&from.together);
        starts = from.starts;
    }

    // The next code of a stream with what follows it, eleven bits, the first one highest.
    static DEVICE u32 code_of(u32 bits) { return __brev(bits) >> (32 - CODE_BITS); }

    // The bits of the code that these eleven begin with. Halves of words are compared, so that five subtractions are ten.
    DEVICE u32 length_of(u32 code) const {
        const u32 both = code * 0x10001u | 0x80008000u;
        u32 beyond = 0;
#pragma unroll
        for (u32 i = 0; i < 5; i++) beyond += (both - limits[i]) >> 15 & 0x10001u;
        return 1 + (beyond & 0xffff) + (beyond >> 16);
    }

    DEVICE bool is_escape(u32 code) const { return code - escape_first < escape_count; }

    DEVICE u32 word_of(u32 code, u32 length) const {
        return __ldg(COLUMN_WORDS + (int(code >> (CODE_BITS - length)) + __ldg(starts + length)));
    }
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
        constexpr int STEP_MAX = 63;
        const HeaderNumber kinds{u32(word)};
        const int next = max(0, min(int(COLUMN_KINDS), kind + kinds.number));
        column.kind = u8(next);
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
    u32 column = 0, left = 0, escaped = 0;
    BitStream stream(parts.codes, parts.limit, shared.rings[0] + lane, start, 0);
    ColumnCodes codes(0);
    while (true) {
        ColumnPlace &place = columns[column];
        if (left == 0) {
            if (column == count) break;
            at += headers.read(bits_at(parts, u64(start) * 8 + at), place);
            place.start = u16(at);
            place.codes = 0;
            if (place.kind == 0) {
                column++;
                continue;
            }
            stream = BitStream(parts.codes, parts.limit, shared.rings[0] + lane, start + at / 8, at % 8);
            codes = ColumnCodes(place.kind);
            left = rows;
            escaped = 0;
        }
        u32 length_sum = 0;
        stream.read_codes([&](u32) {
            if (left == 0) return;
            const u32 code = ColumnCodes::code_of(stream.next());
            const u32 length = codes.length_of(code), some = min(codes.together, left);
            stream.skip(length);
            length_sum += length;
            // What fills up the last word isn't there.
            if (codes.is_escape(code)) escaped += some;
            left -= some;
        });
        at += length_sum;
        place.codes = u16(place.codes + length_sum);
        if (left == 0) {
            at += escaped * ESCAPED_BITS;
            column++;
        }
    }
}

// By what levels of a column are multiplied: a part of its step.
DEVICE float part_of_column(const Parts<Coding::columns> &parts, int step) {
    const u32 up = u32(step + 64), quarter = up % 4;
    const float ratio = quarter < 2 ? (quarter == 0 ? 1.0f : 1.1892071f)
                                    : (quarter == 2 ? 1.41421356237309504880f : 1.6817928f);
    const float part = __uint_as_float(__ldg(reinterpret_cast<const u32 *>(parts.table))) * (1.0f / 256.0f);
    return part * (ratio * __uint_as_float((127 - 16 + up / 4) << 23));
}

// Decodes a column of a strip for each thread of the block, from where it was found.
template <class T>
DEVICE void write_columns(T *out, const Parts<Coding::columns> &parts, ColumnsShared &shared, u32 strip, u32 width,
                          u32 rows) {
    constexpr u32 MEANS = 64, FIRST_MEAN = RATE_SYMBOLS / 2 - MEANS / 2;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 column = strip * STRIP_COLUMNS + threadIdx.x;
    if (column - lane >= width) return;
    const bool mine = column < width;
    const ColumnPlace place = mine ? shared.columns[threadIdx.x] : ColumnPlace{};
    SymbolStage &stage = shared.stages[warp];
    const u32 tile_start = shared.tile_starts[threadIdx.x / TILE_COLUMNS];
    BitStream stream(parts.codes, parts.limit, shared.rings[warp] + lane, tile_start + place.start / 8, place.start % 8);
    u64 escape_at = u64(tile_start) * 8 + place.start + place.codes;
    const ColumnCodes codes(place.kind);
    const float part = part_of_column(parts, place.step);
    const signed char *means = COLUMN_MEANS + (place.kind == 0 ? 0 : place.kind - 1) * MEANS;
    Quantizers quantizers;
    // Symbols of a word that were not taken yet.
    u32 word = 0, ready = 0;
    for (u32 first = 0; first < rows; first += PHASE) {
#pragma unroll 1
        for (u32 half = 0; half < PHASE; half += BitStream::CODES) {
            u32 four = 0;
            stream.read_codes([&](u32 i) {
                if (ready == 0) {
                    const u32 code = ColumnCodes::code_of(stream.next()), length = codes.length_of(code);
                    stream.skip(length);
                    word = codes.word_of(code, length);
                    ready = codes.together;
                }
                u32 symbol = word & 255;
                word >>= 8;
                ready--;
                if (symbol == ESCAPED && place.kind != 0 && first + half + i < rows) {
                    symbol = u32(bits_at(parts, escape_at)) & ((1u << ESCAPED_BITS) - 1);
                    escape_at += ESCAPED_BITS;
                }
                four = i % 4 == 0 ? symbol : four | symbol << 8 * (i % 4);
                if (i % 4 == 3) stage.word(lane, (half + i) / 4) = four;
            });
        }
        quantizers.mark(stage, lane);
#pragma unroll 4
        for (u32 i = 0; i < PHASE && first + i < rows; i++) {
            const u32 marked = stage.word(lane, i / 4) >> 8 * (i % 4) & 0xff;
            const u32 symbol = marked % RATE_SYMBOLS, mean = symbol - FIRST_MEAN;
            const float level = shared.points[symbol] + (mean < MEANS ? float(__ldg(means + mean)) : 0.0f);
            // Not its negative: where it is zero, that is the zero that integers have.
            const float value = (marked < RATE_SYMBOLS ? level : 0.0f - level) * part * shared.factors[first + i];
            if (mine) out[u64(first + i) * width + column] = narrow<T>(place.kind == 0 ? 0.0f : value);
        }
    }
}

template <class T> DEVICE void decode_columns(T *out, const u8 *bytes, u32 width, u32 tile, const CodedChunk &chunk) {
    __shared__ ColumnsShared shared;

    const Parts<Coding::columns> parts(bytes, chunk, width, tile, 0);
    if (blockIdx.x >= parts.strips) return;
    for (u32 i = threadIdx.x; i < RATE_SYMBOLS; i += blockDim.x) shared.points[i] = point_of(i) * 256.0f;
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
