// Coded matrices: where their parts lie, and how symbols become numbers. `daemon/codec` describes the format, in `layout.rs`.
//
// A chunk of a matrix has a table, and tiles of some hundred numbers that are decoded each for itself; a warp takes 32 of
// them, a strip. Whatever the bytes are, nothing outside of the chunk's parts is read, and nothing outside of its numbers
// written: places are brought back to where they can be, and loops end with the tile.

#pragma once

#include "format.cuh"
#include "stores.cuh"

// As `kernels/decode.rs` lays it out.
struct CodedChunk {
    // Bytes from the matrix's first.
    u64 start;
    // Rows of the matrix before it.
    u32 first_row;
    u32 rows;
    u32 codes_bytes, escapes_bytes;
};

// What a launch is given at once: its arguments may be 4 KiB.
struct CodedChunks {
    CodedChunk each[128];
};

enum class Coding { huffman, palette, rate, columns };

constexpr u32 DECODE_WARPS = 8;
constexpr u32 STRIP_TILES = 32;
// Columns of a tile, of matrices that are coded column by column.
constexpr u32 TILE_COLUMNS = 8;
// Length of a tile whose symbols are kept as they are.
constexpr u32 WHOLE = 255;
// Numbers of a tile that a warp writes before it goes on with the next ones.
constexpr u32 PHASE = 32;

// A chunk's parts. What its coding lacks is not to be used.
template <Coding CODING> struct Parts {
    const u8 *table, *steps, *offsets, *lengths, *codes, *escapes, *raw;
    u32 numbers, tiles, strips, tile;
    // Bytes that tiles' places are in.
    u32 limit;

    DEVICE Parts(const u8 *bytes, const CodedChunk &chunk, u32 width, u32 tile, u32 raw_bytes) : tile(tile) {
        numbers = chunk.rows * width;
        if constexpr (CODING == Coding::columns) {
            tiles = chunk.rows == 0 ? 0 : (width + TILE_COLUMNS - 1) / TILE_COLUMNS;
        } else {
            tiles = (numbers + tile - 1) / tile;
        }
        strips = (tiles + STRIP_TILES - 1) / STRIP_TILES;
        limit = CODING == Coding::palette ? chunk.escapes_bytes : chunk.codes_bytes;

        constexpr u32 TABLES[] = {128, 16, 132, 4};
        constexpr u32 TABLE = TABLES[u32(CODING)];
        constexpr u32 PADDING = 16;
        u64 end = 0;
        const auto part = [&](u64 length) {
            const u64 at = (end + 63) / 64 * 64;
            end = at + length;
            return bytes + chunk.start + at;
        };
        table = part(TABLE);
        steps = part(CODING == Coding::rate || CODING == Coding::columns ? chunk.rows : 0);
        offsets = part(u64(strips + 1) * 4);
        lengths = part(CODING == Coding::columns ? 2 * u64(tiles) : tiles);
        codes = part(u64(chunk.codes_bytes) + (CODING == Coding::palette ? 0 : PADDING));
        escapes = part(CODING == Coding::palette ? u64(chunk.escapes_bytes) + PADDING : 0);
        raw = part(u64(numbers) * raw_bytes);
    }
};

// A tile's bytes in codes, or in escapes.
struct TilePlace {
    u32 start, bytes;
    bool whole;
};

// Those of the lane's tile of a strip. All lanes of the warp call it.
template <Coding CODING> DEVICE TilePlace place_of_tile(const Parts<CODING> &parts, u32 strip, u32 lane) {
    const u32 tile = strip * STRIP_TILES + lane;
    u32 bytes = 0;
    bool whole = false;
    if constexpr (CODING == Coding::columns) {
        if (tile < parts.tiles) bytes = __ldg(reinterpret_cast<const u16 *>(parts.lengths) + tile);
    } else {
        const u32 length = tile < parts.tiles ? __ldg(parts.lengths + tile) : 0;
        const u32 unit = CODING == Coding::palette ? 1 : max(parts.tile / 256, 1u);
        whole = length == WHOLE;
        bytes = whole ? min(parts.tile, parts.numbers - tile * parts.tile) : length * unit;
    }
    u32 end = bytes;
#pragma unroll
    for (u32 before = 1; before < WARP; before *= 2) {
        const u32 more = __shfl_up_sync(0xffffffffu, end, before);
        if (lane >= before) end += more;
    }
    const u32 offset = min(__ldg(reinterpret_cast<const u32 *>(parts.offsets) + strip), parts.limit);
    const u32 start = min(offset + end - bytes, parts.limit);
    return {start, min(bytes, parts.limit - start), whole};
}

// A number as it lies in memory, and the other way.
template <class T> DEVICE u32 bits_of(float value) {
    if constexpr (sizeof(T) == 4) return __float_as_uint(value);
    else return bits(narrow<T>(value));
}
template <class T> DEVICE float value_of(u32 bits) {
    if constexpr (sizeof(T) == 4) return __uint_as_float(bits);
    else return from_bits<T>(bits);
}

// Numbers of T from symbols and the raw bytes that these leave of numbers of Source. Where both are the same, bit for bit.
template <class T, class Source> struct Lossless {
    static constexpr u32 RAW_BYTES = sizeof(Source) - 1;
    static constexpr u32 COUNT = 8 * sizeof(T) / 16;
    static constexpr bool SAME = format::same<T, Source>;
    const u8 *raw;

    // Four numbers of 16 bits, in two words.
    static DEVICE uint2 four(u32 symbols, u32 rest) {
        u32 low = rest, high = symbols;
        if constexpr (format::same<Source, __nv_bfloat16>) {
            // The symbol is the exponent, whose last bit is in the low byte; the rest is sign and mantissa.
            low = (symbols << 7 & 0x80808080u) | (rest & 0x7f7f7f7fu);
            high = (rest & 0x80808080u) | (symbols >> 1 & 0x7f7f7f7fu);
        }
        return {__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362)};
    }

    static DEVICE u32 wide(u32 symbol, u32 rest) {
        return (rest & 0x800000u) << 8 | symbol << 23 | (rest & 0x7fffffu);
    }

    // Eight numbers from `first` on, a multiple of eight.
    DEVICE void eight(u32 first, uint2 symbols, uint4 (&words)[COUNT]) const {
        const uint2 *from = reinterpret_cast<const uint2 *>(raw + u64(first) * RAW_BYTES);
        if constexpr (sizeof(Source) == 2) {
            const uint2 rest = __ldg(from);
            const uint2 low = four(symbols.x, rest.x), high = four(symbols.y, rest.y);
            const u32 pairs[4] = {low.x, low.y, high.x, high.y};
            if constexpr (SAME) {
                words[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
            } else {
                float values[8];
#pragma unroll
                for (u32 i = 0; i < 8; i++) values[i] = from_bits<Source>(pairs[i / 2] >> 16 * (i % 2) & 0xffff);
                to_words<T>(values, words);
            }
        } else {
            const uint2 rest[3] = {__ldg(from), __ldg(from + 1), __ldg(from + 2)};
            const u32 packed[7] = {rest[0].x, rest[0].y, rest[1].x, rest[1].y, rest[2].x, rest[2].y, 0};
            float values[8];
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                const u64 both = u64(packed[3 * i / 4 + 1]) << 32 | packed[3 * i / 4];
                const u32 symbol = (i < 4 ? symbols.x : symbols.y) >> 8 * (i % 4) & 0xff;
                values[i] = __uint_as_float(wide(symbol, u32(both >> 8 * (3 * i % 4)) & 0xffffff));
            }
            to_words<T>(values, words);
        }
    }

    // One number, as it lies in memory.
    DEVICE u32 one(u32 at, u32 symbol) const {
        const u8 *from = raw + u64(at) * RAW_BYTES;
        u32 number = __ldg(from);
        if constexpr (sizeof(Source) == 4) {
            number = wide(symbol, number | u32(__ldg(from + 1)) << 8 | u32(__ldg(from + 2)) << 16);
        } else {
            number = four(symbol, number).x & 0xffff;
        }
        if constexpr (SAME) return number;
        else return bits_of<T>(value_of<Source>(number));
    }
};

// Writes eight numbers of each lane, those from `first` on, and none from `end` on. Lanes of a pair have neighbouring eights.
// Where all lanes have eight, and their places are aligned, `full` says so to all of them.
template <class T, class Numbers>
DEVICE void write_eights(T *out, const Numbers &numbers, u32 first, u32 end, uint2 symbols, bool full) {
    if (full) {
        uint4 words[Numbers::COUNT];
        numbers.eight(first, symbols, words);
        if constexpr (Numbers::COUNT == 1) {
            *reinterpret_cast<uint4 *>(out + first) = words[0];
        } else {
            store_of_pair(reinterpret_cast<uint4 *>(out + first / 16 * 16), words);
        }
        return;
    }
#pragma unroll 1
    for (u32 i = 0; i < 8 && first + i < end; i++) {
        const u32 symbol = (i < 4 ? symbols.x : symbols.y) >> 8 * (i % 4) & 0xff;
        const u32 number = numbers.one(first + i, symbol);
        if constexpr (sizeof(T) == 4) reinterpret_cast<u32 *>(out)[first + i] = number;
        else reinterpret_cast<u16 *>(out)[first + i] = u16(number);
    }
}

// Where a chunk's numbers go, and whether loads and stores of 16 bytes can be used there.
template <class T> struct DecodedChunk {
    T *out;
    bool aligned;

    DEVICE DecodedChunk(T *all, const CodedChunk &chunk, u32 width)
        : out(all + u64(chunk.first_row) * width), aligned((reinterpret_cast<u64>(out) & 15) == 0) {}
};

// Symbols of a strip's tiles on their way from the lane that decoded them to those that write them: words of four, a phase
// of each tile. What four tiles apart is read at once lies in different banks.
struct SymbolStage {
    static constexpr u32 STRIDE = STRIP_TILES + 4;
    u32 words[PHASE / 4 * STRIDE];

    DEVICE u32 &word(u32 tile, u32 at) { return words[at * STRIDE + tile]; }
};

// Writes a phase of all tiles of a strip. Four lanes have a tile's 32 numbers, so that raw bytes are read and numbers
// written in whole sectors.
template <class T, class Numbers, Coding CODING>
DEVICE void write_phase(const DecodedChunk<T> &to, const Numbers &numbers, const Parts<CODING> &parts, SymbolStage &stage,
                        u32 strip, u32 phase, u32 lane) {
    constexpr u32 TILES = WARP / 4;
#pragma unroll 2
    for (u32 i = 0; i < STRIP_TILES; i += TILES) {
        const u32 tile = i + lane / 4, piece = lane % 4;
        const u32 first = (strip * STRIP_TILES + tile) * parts.tile + phase * PHASE + piece * 8;
        const bool full = to.aligned && (strip * STRIP_TILES + i + TILES) * parts.tile <= parts.numbers;
        const uint2 symbols = {stage.word(tile, 2 * piece), stage.word(tile, 2 * piece + 1)};
        write_eights(to.out, numbers, first, parts.numbers, symbols, full);
    }
}
