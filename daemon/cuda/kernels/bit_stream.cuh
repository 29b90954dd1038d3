// A stream of codes as a lane reads it, least significant bit first.
//
// What would hurt is to wait: lanes come to the end of what they have read at different times, and a warp waits for each.
// So all lanes read at the same places of the program, 16 bytes ahead of what they need, into rings in shared memory, and
// a load has sixteen codes' time to arrive.

#pragma once

#include "cuda_device.cuh"

constexpr u32 CODE_BITS = 11;

// Beyond the codes' bytes come zeros.
struct BitStream {
    static constexpr u32 RING = 16;
    // Codes between two looks at what the ring has left, and the words that they take at most: eleven bits each, where up
    // to two words lie ready.
    static constexpr u32 CODES = 16;
    static constexpr u32 WORDS = 6;
    static_assert((CODES - 2) * CODE_BITS + 64 < 32 * (WORDS + 1), "the ring has enough for them");

    const u8 *codes;
    u32 codes_bytes;
    // Words that lie a warp apart.
    u32 *ring;
    u32 first_block, filled = 0, taken = 0;
    u64 bits = 0;
    u32 have = 0;

    // Begins with bit `bit` of byte `start`, less than eight.
    DEVICE BitStream(const u8 *codes, u32 codes_bytes, u32 *ring, u32 start, u32 bit)
        : codes(codes), codes_bytes(codes_bytes), ring(ring), first_block(start / 16) {
        for (u32 i = 0; i < 3; i++) put(block(0));
        taken = start % 16 / 4;
        take();
        skip(start % 4 * 8 + bit);
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

    DEVICE u32 next() const { return u32(bits); }

    DEVICE void skip(u32 count) {
        bits >>= count;
        have -= count;
    }

    // Calls `read` with the numbers of the next codes in turn. Each call may skip one code.
    template <class Read> DEVICE void read_codes(Read read) {
        const u32 left = filled - taken;
        // So that at the end there are WORDS left again, and there is room.
        const bool more = left < 2 * WORDS, twice = left <= RING - 8;
        uint4 next = {}, after = {};
        if (more) next = block(0);
        if (twice) after = block(1);
#pragma unroll
        for (u32 i = 0; i < CODES; i++) {
            if (i % 2 == 0 && have <= 32) take();
            read(i);
        }
        if (more) put(next);
        if (twice) put(after);
    }

    // The same with fewer registers: it waits for what it reads.
    template <class Read> DEVICE void read_one_by_one(Read read) {
        while (filled - taken < 2 * WORDS) put(block(0));
#pragma unroll 1
        for (u32 i = 0; i < CODES; i++) {
            if (i % 2 == 0 && have <= 32) take();
            read();
        }
    }
};
