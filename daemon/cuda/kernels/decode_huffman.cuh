// Symbols by Huffman codes: a lane decodes a tile, number by number.
//
// The card has more shared memory's reads to give than this takes: one lookup a number, eleven bits wide, is a third of
// the time that memory needs for the numbers. What would hurt is to wait: lanes come to the end of what they have read at
// different times, and a warp waits for each. So all lanes read at the same places of the program, 16 bytes ahead of what
// they need, into rings in shared memory, and a load has sixteen numbers' time to arrive.

#pragma once

#include "decode.cuh"

constexpr u32 CODE_BITS = 11;
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

// A tile's codes as a lane reads them. Beyond the chunk's codes come zeros.
struct CodeStream {
    static constexpr u32 RING = 16;
    // Numbers between two looks at what the ring has left, and the words that they take at most: eleven bits each, where
    // up to two words lie ready.
    static constexpr u32 NUMBERS = 16;
    static constexpr u32 WORDS = 6;
    static_assert((NUMBERS - 2) * CODE_BITS + 64 < 32 * (WORDS + 1), "the ring has enough for them");

    const u8 *codes;
    u32 codes_bytes;
    // Words that lie a warp apart.
    u32 *ring;
    u32 first_block, filled = 0, taken = 0;
    u64 bits = 0;
    u32 have = 0;
    bool whole;

    DEVICE CodeStream(const u8 *codes, u32 codes_bytes, u32 *ring, const TilePlace &place)
        : codes(codes), codes_bytes(codes_bytes), ring(ring), first_block(place.start / 16), whole(place.whole) {
        for (u32 i = 0; i < 3; i++) put(block(0));
        taken = place.start % 16 / 4;
        take();
        bits >>= place.start % 4 * 8;
        have -= place.start % 4 * 8;
    }

    // Sixteen bytes: the `ahead`-th ones that aren't in the ring.
    DEVICE uint4 block(u32 ahead) const {
        const u32 at = (first_block + filled / 4 + ahead) * 16;
        // What begins within the codes ends within their padding.
        if (at > codes_bytes) return {0, 0, 0, 0};
        return __ldg(reinterpret_cast<const uint4 *>(codes + at));
    }

    DEVICE void put(const uint4 &block) {
        u32 *to = ring + filled % RING * WARP;
        to[0] = block.x;
        to[WARP] = block.y;
        to[2 * WARP] = block.z;
        to[3 * WARP] = block.w;
        filled += 4;
    }

    DEVICE void take() {
        bits |= u64(ring[taken % RING * WARP]) << have;
        taken++;
        have += 32;
    }

    DEVICE u32 symbol(const u16 *entries) {
        const u32 next = u32(bits);
        // A tile that is kept as it is has codes of eight bits, which are the symbols.
        const u32 entry = whole ? (next & 255) | 8 << 8 : entries[next % ENTRIES];
        bits >>= entry >> 8;
        have -= entry >> 8;
        return entry & 255;
    }

    // The next symbols, in words of four.
    template <class Put> DEVICE void decode(const u16 *entries, Put put_word) {
        const u32 left = filled - taken;
        // So that at the end there are WORDS left again, and there is room.
        const bool more = left < 2 * WORDS, twice = left <= RING - 8;
        uint4 next = {}, after = {};
        if (more) next = block(0);
        if (twice) after = block(1);
#pragma unroll
        for (u32 i = 0; i < NUMBERS; i += 4) {
            u32 word = 0;
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                if (j % 2 == 0 && have <= 32) take();
                word |= symbol(entries) << 8 * j;
            }
            put_word(i / 4, word);
        }
        if (more) put(next);
        if (twice) put(after);
    }
};

struct HuffmanShared {
    HuffmanTable table;
    u32 rings[DECODE_WARPS][CodeStream::RING * WARP];
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
        for (u32 half = 0; half < PHASE; half += CodeStream::NUMBERS) {
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
