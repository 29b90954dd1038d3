// What a block's threads have found, made one. The order is fixed, so that the same numbers give the same result.

#pragma once

#include "cuda_device.cuh"

constexpr u32 REDUCE_THREADS = 256;

// All threads of a block of REDUCE_THREADS get what `join` makes of their values, in a tree.
template <class Value, class Join> DEVICE Value reduce_block(Value value, Join join) {
    __shared__ Value values[REDUCE_THREADS];
    const u32 thread = threadIdx.x;
    values[thread] = value;
    for (u32 half = REDUCE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) values[thread] = join(values[thread], values[thread + half]);
    }
    __syncthreads();
    Value all = values[0];
    // The memory is free for the next.
    __syncthreads();
    return all;
}

template <class Number> DEVICE Number sum_of_block(Number value) {
    return reduce_block(value, [](Number a, Number b) { return a + b; });
}

// The same for the lanes of a warp.
DEVICE float sum_of_warp(float value) {
#pragma unroll
    for (u32 far = WARP / 2; far > 0; far /= 2) value += __shfl_xor_sync(0xffffffffu, value, far);
    return value;
}

// A logit and its token, or none.
template <class Score> struct Best {
    Score score;
    u32 token;
    static constexpr u32 NONE = 0xffffffffu;
};

// The better of the block's; of equal ones that of the lower id.
template <class Score> DEVICE Best<Score> best_of_block(Best<Score> best) {
    return reduce_block(best, [](Best<Score> a, Best<Score> b) {
        bool other = b.score > a.score || (b.score == a.score && b.token < a.token);
        return other ? b : a;
    });
}
