// What attention kernels are told, and how they walk through the keys.

#pragma once

#include "tile.cuh"

// Queries of one sequence, and the segments of keys that they see: all of them, or each those up to its own place.
struct Task {
    u32 query_start;
    u32 query_count;
    u32 segment_start;
    u32 segment_count;
    // Whether query i sees no row of keys beyond row `place` + i.
    u32 causal;
    u32 place;
};

// Consecutive rows of keys and values.
struct Segment {
    u32 start;
    u32 len;
};

// Keys of a tile.
constexpr u32 TILE_KEYS = 32;

// The row of keys from which on a query sees none.
DEVICE u32 sight_end(const Task &task, u32 query) { return task.causal ? task.place + query + 1 : 0xffffffffu; }

// Goes through the keys of a task that some query sees, a tile of one segment at a time.
struct KeyTiles {
    const Segment *segment;
    const Segment *end;
    u32 from;
    // Where the query that sees most sees no more.
    u32 limit;

    DEVICE KeyTiles(const Segment *segments, const Task &task, u32 limit)
        : segment(segments + task.segment_start), end(segment + task.segment_count), from(0), limit(limit) {
        skip_unseen();
    }

    DEVICE bool more() const { return segment != end; }
    DEVICE u32 row() const { return segment->start + from; }
    DEVICE u32 count() const { return count_before(limit); }

    // How many of the tile's rows stand before this one.
    DEVICE u32 count_before(u32 end) const {
        return end <= row() ? 0 : min(min(segment->len - from, end - row()), TILE_KEYS);
    }

    DEVICE void next() {
        from += TILE_KEYS;
        if (from >= segment->len || row() >= limit) {
            from = 0;
            segment++;
            skip_unseen();
        }
    }

    DEVICE void skip_unseen() {
        while (segment != end && (segment->len == 0 || segment->start >= limit)) segment++;
    }
};

// What scores are taken from before they are raised: their largest, or anything where a query has seen no key yet.
DEVICE float finite_max(float max) { return max == -infinity() ? 0.0f : max; }

// What a task attends to nothing with is zero.
DEVICE float inverse_of_sum(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

#define ATTEND_PARAMETERS(T) \
    number::T *out, const number::T *q, const number::T *k, const number::T *v, const Task *tasks, \
        const Segment *segments, u32 heads, u32 kv_heads, u32 head_dim, float scale
#define ATTEND_ARGUMENTS(task) out, q, k, v, tasks[task], segments, heads, kv_heads, head_dim, scale
