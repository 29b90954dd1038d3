// Symbols by Huffman codes: a lane decodes a tile, number by number.
//
// The card has more shared memory's reads to give than this takes: one lookup a number, eleven bits wide, is a third of
// the time that memory needs for the numbers.

#pragma once

#include "bit_stream.cuh"
#include "decode.cuh"

constexpr u32 ENTRIES = 1 << CODE_BITS;

struct HuffmanTable {
    // By the next eleven bits: a symbol, and above it the bits of its code.
    u16 entries[ENTRIES];
    // Symbols by their codes, and for each length where its codes end, in eleven bits, and where its symbols begin less
    // its first code.
    u8 symbols[256];
    u32 limits[CODE_BITS + 1], starts[CODE_BITS + 1], firsts[CODE_BITS + 1];

    // How many symbols have codes of each length: ten bits each.
    struct Counts {
        u64 low = 0, high = 0;

        DEVICE u32 of(u32 length) const {
            return u32((length <= 6 ? low : high) >> 10 * ((length - 1) % 6)) & 1023;
        }
        DEVICE void count(u32 length) {
            const u64 one = u64(1) << 10 * ((length - 1) % 6);
            if (length <= 6) low += one;
            else high += one;
        }
    };

    // From lengths of four bits each, `words` words of them; all threads of the block call it. Codes that can't be are
    // none.
    DEVICE void build(const u8 *lengths, u32 words) {
        if (threadIdx.x < WARP) sort(lengths, words);
        __syncthreads();
        u32 ends[CODE_BITS];
#pragma unroll
        for (u32 i = 1; i < CODE_BITS; i++) ends[i] = limits[i];
        for (u32 i = threadIdx.x; i < ENTRIES; i += blockDim.x) {
            // Codes lie with their first bit lowest.
            const u32 code = __brev(i) >> (32 - CODE_BITS);
            u32 length = 1;
#pragma unroll
            for (u32 j = 1; j < CODE_BITS; j++) length += code >= ends[j] ? 1 : 0;
            const u32 symbol = symbols[((code >> (CODE_BITS - length)) + starts[length]) & 255];
            entries[i] = u16(symbol | length << 8);
        }
        __syncthreads();
    }

    // The lanes of a warp take eight symbols each.
    DEVICE void sort(const u8 *lengths, u32 words) {
        const u32 lane = threadIdx.x;
        const u32 mine = lane < words ? __ldg(reinterpret_cast<const u32 *>(lengths) + lane) : 0;
        const auto length_of = [&](u32 i) {
            const u32 length = mine >> 4 * i & 15;
            return length <= CODE_BITS ? length : 0;
        };
        Counts own;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (length_of(i) > 0) own.count(length_of(i));
        }
        Counts before = own;
#pragma unroll
        for (u32 by = 1; by < WARP; by *= 2) {
            const u64 low = __shfl_up_sync(0xffffffffu, before.low, by);
            const u64 high = __shfl_up_sync(0xffffffffu, before.high, by);
            if (lane >= by) {
                before.low += low;
                before.high += high;
            }
        }
        Counts all;
        all.low = __shfl_sync(0xffffffffu, before.low, WARP - 1);
        all.high = __shfl_sync(0xffffffffu, before.high, WARP - 1);
        before.low -= own.low;
        before.high -= own.high;
        if (lane == 0) {
            u32 code = 0, place = 0;
#pragma unroll
            for (u32 length = 1; length <= CODE_BITS; length++) {
                const u32 count = all.of(length);
                firsts[length] = place;
                starts[length] = place - code;
                limits[length] = (code + count) << (CODE_BITS - length);
                place += count;
                code = (code + count) << 1;
            }
        }
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 length = length_of(i);
            if (length == 0) continue;
            symbols[(firsts[length] + before.of(length)) & 255] = u8(8 * lane + i);
            before.count(length);
        }
    }
};

// A tile's codes as a lane reads them.
struct CodeStream : BitStream {
    bool whole;

    DEVICE CodeStream(const u8 *codes, u32 codes_bytes, u32 *ring, const TilePlace &place)
        : BitStream(codes, codes_bytes, ring, place.start, 0), whole(place.whole) {}

    DEVICE u32 symbol(const u16 *entries) {
        // A tile that is kept as it is has codes of eight bits, which are the symbols.
        const u32 entry = whole ? (next() & 255) | 8 << 8 : entries[next() % ENTRIES];
        skip(entry >> 8);
        return entry & 255;
    }

    // The next symbols, in words of four.
    template <class Put> DEVICE void decode(const u16 *entries, Put put_word) {
        u32 word = 0;
        read_codes([&](u32 i) {
            word = i % 4 == 0 ? symbol(entries) : word | symbol(entries) << 8 * (i % 4);
            if (i % 4 == 3) put_word(i / 4, word);
        });
    }
};

struct HuffmanShared {
    HuffmanTable table;
    u32 rings[DECODE_WARPS][BitStream::RING * WARP];
    SymbolStage stages[DECODE_WARPS];
};

// What a warp does with a strip. `change` may change the symbols of the lane's tile, phase by phase.
template <class T, class Numbers, Coding CODING, class Change>
DEVICE void decode_strip(const DecodedChunk<T> &to, const Numbers &numbers, const Parts<CODING> &parts,
                         HuffmanShared &shared, u32 strip, Change change) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    SymbolStage &stage = shared.stages[warp];
    const TilePlace place = place_of_tile(parts, strip, lane);
    CodeStream stream(parts.codes, parts.limit, shared.rings[warp] + lane, place);
    for (u32 phase = 0; phase < parts.tile / PHASE; phase++) {
#pragma unroll 1
        for (u32 half = 0; half < PHASE; half += BitStream::CODES) {
            stream.decode(shared.table.entries, [&](u32 at, u32 word) { stage.word(lane, half / 4 + at) = word; });
        }
        change(stage, lane);
        __syncwarp();
        write_phase(to, numbers, parts, stage, strip, phase, lane);
        __syncwarp();
    }
}

template <class T, class Source>
DEVICE void decode_huffman(T *out, const u8 *bytes, u32 width, u32 tile, const CodedChunk &chunk) {
    using Numbers = Lossless<T, Source>;
    __shared__ HuffmanShared shared;

    const Parts<Coding::huffman> parts(bytes, chunk, width, tile, Numbers::RAW_BYTES);
    if (blockIdx.x * DECODE_WARPS >= parts.strips) return;
    shared.table.build(parts.table, 32);
    const u32 strip = blockIdx.x * DECODE_WARPS + threadIdx.x / WARP;
    if (strip >= parts.strips) return;
    decode_strip(DecodedChunk<T>(out, chunk, width), Numbers{parts.raw}, parts, shared, strip, [](SymbolStage &, u32) {});
}
