// What attention kernels are told, and how they walk through the keys.

#pragma once

#include "tile.cuh"

// Queries of one sequence, and the segments of keys that they see: all of them, or each those up to its own place.
struct Task {
    u32 query_start;
    u32 query_count;
    u32 segment_start;
    u32 segment_count;
    // Whether query i sees no key beyond the one at `place` + i.
    u32 causal;
    u32 place;
};

// Consecutive keys and their values.
struct Segment {
    u32 start;
    u32 len;
};

// Keys of a tile.
constexpr u32 TILE_KEYS = 32;

// Which keys queries with a place of their own see, and where they lie: the same for all tasks of a launch.
struct Sight {
    // Each sees so many keys up to its own place.
    u32 window;
    // Keys take turns in so many rows.
    u32 rows;

    // The first key that a query sees, and the first beyond those. Without a place it sees them all.
    DEVICE u32 begin(const Task &task, u32 query) const {
        const u32 end = task.place + query + 1;
        return task.causal && end > window ? end - window : 0;
    }
    DEVICE u32 end(const Task &task, u32 query) const { return task.causal ? task.place + query + 1 : 0xffffffffu; }
};

// Goes through the keys of a task that some query sees, a tile of one segment at a time.
struct KeyTiles {
    const Segment *segment;
    const Segment *last;
    u32 from;
    // What the queries see together.
    u32 begin, end;
    u32 rows;

    // Of the queries `first` to `last_query`.
    DEVICE KeyTiles(const Segment *segments, const Task &task, const Sight &sight, u32 first, u32 last_query)
        : segment(segments + task.segment_start), last(segment + task.segment_count), from(0),
          begin(sight.begin(task, first)), end(sight.end(task, last_query)), rows(sight.rows) {
        enter();
    }

    DEVICE bool more() const { return segment != last; }
    DEVICE u32 key() const { return segment->start + from; }
    // Where the tile's first key lies; the others follow it.
    DEVICE u32 row() const { return key() % rows; }
    DEVICE u32 count() const { return count_before(end); }

    // How many of the tile's keys stand before this one.
    DEVICE u32 count_before(u32 end) const {
        return end <= key() ? 0 : min(min(min(segment->len - from, end - key()), TILE_KEYS), rows - row());
    }

    DEVICE void next() {
        from += min(TILE_KEYS, rows - row());
        if (from >= segment->len || key() >= end) {
            segment++;
            enter();
        }
    }

    // Goes to the first key that is seen of the first segment that has one.
    DEVICE void enter() {
        while (segment != last && (segment->start >= end || segment->start + segment->len <= begin || segment->len == 0)) {
            segment++;
        }
        from = segment != last && begin > segment->start ? begin - segment->start : 0;
    }
};

// What scores are taken from before they are raised: their largest, or anything where a query has seen no key yet.
DEVICE float finite_max(float max) { return max == -infinity() ? 0.0f : max; }

// What a task attends to nothing with is zero.
DEVICE float inverse_of_sum(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

#define ATTEND_PARAMETERS(T) \
    number::T *out, const number::T *q, const number::T *k, const number::T *v, const Task *tasks, \
        const Segment *segments, u32 heads, u32 kv_heads, u32 head_dim, float scale, u32 window, u32 key_rows
#define ATTEND_ARGUMENTS(task) \
    out, q, k, v, tasks[task], Sight{window, key_rows}, segments, heads, kv_heads, head_dim, scale
