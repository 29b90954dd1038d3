// Two heads' distributions beside each other: a piece of both into each row's running state. A block takes a row. It
// follows `ops/compare.rs` of the engine.

#include "reduce.cuh"

struct CompareState {
    float max[2];
    u32 top[2];
    // Sums of `exp(logit - max)`.
    double sum[2];
    float target[2];
    // Sum of `exp(one - max of one) · (one - other)`.
    double difference;
};

KERNEL_FUNCTION compare_reduce(CompareState *states, const float *one, const float *other, const u32 *targets, u32,
                               u32 columns, u32 first) {
    const float *logits[2] = {one + u64(blockIdx.x) * columns, other + u64(blockIdx.x) * columns};
    const u32 target = targets[blockIdx.x] - first;
    CompareState state = states[blockIdx.x];
    const float first_max = state.max[0];

#pragma unroll
    for (u32 side = 0; side < 2; side++) {
        Best<float> top = {-infinity(), Best<float>::NONE};
        for (u32 i = threadIdx.x; i < columns; i += REDUCE_THREADS) {
            if (logits[side][i] > top.score) top = {logits[side][i], first + i};
        }
        top = best_of_block(top);
        const float before = state.max[side];
        if (top.score > before) {
            state.max[side] = top.score;
            state.top[side] = top.token;
        }
        double sum = 0.0;
        for (u32 i = threadIdx.x; i < columns; i += REDUCE_THREADS) {
            sum += exp(double(logits[side][i] - state.max[side]));
        }
        state.sum[side] = state.sum[side] * exp(double(before - state.max[side])) + sum_of_block(sum);
        if (target < columns) state.target[side] = logits[side][target];
    }

    double difference = 0.0;
    for (u32 i = threadIdx.x; i < columns; i += REDUCE_THREADS) {
        difference += exp(double(logits[0][i] - state.max[0])) * (double(logits[0][i]) - double(logits[1][i]));
    }
    difference = sum_of_block(difference);
    state.difference = state.difference * exp(double(first_max - state.max[0])) + difference;
    if (threadIdx.x == 0) states[blockIdx.x] = state;
}
