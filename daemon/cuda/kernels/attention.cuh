// What attention kernels are told, and how they walk through the keys.

#pragma once

#include "tile.cuh"

// Queries of one sequence, and the segments of keys that all of them see.
struct Task {
    u32 query_start;
    u32 query_count;
    u32 segment_start;
    u32 segment_count;
};

// Consecutive rows of keys and values.
struct Segment {
    u32 start;
    u32 len;
};

// Keys of a tile.
constexpr u32 TILE_KEYS = 32;

// Goes through the keys of a task, a tile of one segment at a time.
struct KeyTiles {
    const Segment *segment;
    const Segment *end;
    u32 from;

    DEVICE KeyTiles(const Segment *segments, const Task &task)
        : segment(segments + task.segment_start), end(segment + task.segment_count), from(0) {
        skip_empty();
    }

    DEVICE bool more() const { return segment != end; }
    DEVICE u32 row() const { return segment->start + from; }
    DEVICE u32 count() const { return min(segment->len - from, TILE_KEYS); }

    DEVICE void next() {
        from += TILE_KEYS;
        if (from >= segment->len) {
            from = 0;
            segment++;
            skip_empty();
        }
    }

    DEVICE void skip_empty() {
        while (segment != end && segment->len == 0) segment++;
    }
};

// What a task attends to nothing with is zero.
DEVICE float inverse_of_sum(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

#define ATTEND_PARAMETERS(T) \
    number::T *out, const number::T *q, const number::T *k, const number::T *v, const Task *tasks, \
        const Segment *segments, u32 heads, u32 kv_heads, u32 head_dim, float scale
#define ATTEND_ARGUMENTS(task) out, q, k, v, tasks[task], segments, heads, kv_heads, head_dim, scale
