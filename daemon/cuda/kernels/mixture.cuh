// What a mixture's router chooses, and the sum of what experts make of a row.

#pragma once

#include "elementwise.cuh"
#include "reduce.cuh"

// Rows that experts gave, added to the rows that they are of, times what each counts. A row's are added in the order of
// `entries`: pairs of a row of `x` and the bits of its factor, where those of output `i` begin at `starts[i]`. A block takes
// a part of one row.
template <class T>
DEVICE void add_routed(float *out, const T *x, const u32 *rows, const u32 *starts, const u32 *entries, u32 width) {
    const u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= width) return;
    float *to = out + u64(rows[blockIdx.x]) * width + column;
    float sum = *to;
    for (u32 i = starts[blockIdx.x]; i < starts[blockIdx.x + 1]; i++) {
        sum += __uint_as_float(entries[2 * i + 1]) * widen(x[u64(entries[2 * i]) * width + column]);
    }
    *to = sum;
}

// How a router chooses; the numbers of `weights/src/router.rs`.
struct RouterRules {
    u32 experts, per_row;
    // Sigmoids instead of a softmax.
    u32 sigmoid;
    u32 groups, kept_groups;
    // Whether an expert counts as its share of those chosen, times `scale`.
    u32 shares;
    // Whether the experts' own numbers are factors of what they count, instead of a bias of the choice.
    u32 own_are_factors;
    float logit_scale, scale;
};

// A score and its index. Of equal ones the lower index is better.
struct Scored {
    float score;
    u32 index;

    DEVICE void take(float other, u32 at) {
        if (other > score || (other == score && at < index)) {
            score = other;
            index = at;
        }
    }
};

// The best of a warp's.
DEVICE Scored best_of_warp(Scored best) {
    for (u32 bits = WARP / 2; bits > 0; bits /= 2) {
        const float score = __shfl_xor_sync(0xffffffffu, best.score, bits);
        best.take(score, __shfl_xor_sync(0xffffffffu, best.index, bits));
    }
    return best;
}

// Logits become probabilities, or sigmoids.
DEVICE void score_experts(float *logits, const RouterRules &rules, u32 lane) {
    if (rules.sigmoid != 0) {
        for (u32 i = lane; i < rules.experts; i += WARP) logits[i] = sigmoid(logits[i]);
        return;
    }
    Scored most = {-infinity(), 0};
    for (u32 i = lane; i < rules.experts; i += WARP) {
        logits[i] *= rules.logit_scale;
        most.take(logits[i], i);
    }
    const float largest = best_of_warp(most).score;
    float sum = 0.0f;
    for (u32 i = lane; i < rules.experts; i += WARP) {
        logits[i] = expf(logits[i] - largest);
        sum += logits[i];
    }
    sum = sum_of_warp(sum);
    for (u32 i = lane; i < rules.experts; i += WARP) logits[i] /= sum;
}

// The sum of a group's two best scores; a group of one has no second.
DEVICE float two_best(const float *scores, u32 count) {
    float first = -infinity(), second = -infinity();
    for (u32 i = 0; i < count; i++) {
        second = fmaxf(second, fminf(first, scores[i]));
        first = fmaxf(first, scores[i]);
    }
    return count > 1 ? first + second : first;
}

// Takes all groups but the best out of the scores. There is room for a number of each group behind them.
DEVICE void leave_groups(float *scores, const RouterRules &rules, u32 lane) {
    float *sums = scores + rules.experts;
    const u32 len = rules.experts / rules.groups;
    for (u32 group = lane; group < rules.groups; group += WARP) sums[group] = two_best(scores + group * len, len);
    __syncwarp();
    for (u32 group = lane; group < rules.groups; group += WARP) {
        u32 better = 0;
        for (u32 other = 0; other < rules.groups; other++) {
            better += sums[other] > sums[group] || (sums[other] == sums[group] && other < group);
        }
        if (better < rules.kept_groups) continue;
        for (u32 i = 0; i < len; i++) scores[group * len + i] = -infinity();
    }
    __syncwarp();
}

// The experts that each row goes through, the best first, and what each counts. A warp takes a row: its logits, and as much
// scratch as twice its logits.
DEVICE void choose(float *logits, float *scratch, u32 *chosen, float *weights, const u8 *own, u32 own_format,
                   u32 rows, const RouterRules &rules) {
    const u32 lane = threadIdx.x % WARP, row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= rows) return;
    logits += u64(row) * rules.experts;
    float *choice = scratch + u64(row) * 2 * rules.experts;
    chosen += u64(row) * rules.per_row;
    weights += u64(row) * rules.per_row;
    score_experts(logits, rules, lane);
    const bool biased = own != nullptr && rules.own_are_factors == 0;
    for (u32 i = lane; i < rules.experts; i += WARP) {
        choice[i] = biased ? logits[i] + stored_number(own, own_format, i) : logits[i];
    }
    __syncwarp();
    if (rules.kept_groups < rules.groups) leave_groups(choice, rules, lane);
    float sum = 0.0f;
    for (u32 place = 0; place < rules.per_row; place++) {
        // Whatever the logits are, even where none is a number, it is one of the experts.
        Scored best = {-infinity(), 0};
        for (u32 i = lane; i < rules.experts; i += WARP) best.take(choice[i], i);
        best = best_of_warp(best);
        if (best.index % WARP == lane) choice[best.index] = -infinity();
        // Another lane wrote the score, before the last `__syncwarp`.
        const float score = logits[best.index];
        sum += score;
        if (lane == 0) {
            chosen[place] = best.index;
            weights[place] = score;
        }
    }
    __syncwarp();
    for (u32 place = lane; place < rules.per_row; place += WARP) {
        float weight = weights[place];
        // As the references have it: it matters only where all sigmoids are 0.
        if (rules.shares != 0) weight = weight / (sum + 1e-20f) * rules.scale;
        if (own != nullptr && rules.own_are_factors != 0) weight *= stored_number(own, own_format, chosen[place]);
        weights[place] = weight;
    }
}
