// The head's reduction: a piece of the vocabulary's logits into each row's running state. A block takes a row. It
// follows `ops/head.rs` and `ops/noise.rs` of the engine number for number.

#include "reduce.cuh"

struct HeadState {
    // Largest logit so far, and the sum of `exp(logit - max)`.
    float max;
    float best_logit;
    float target_logit;
    // The token of the best noised logit.
    u32 best;
    double sum;
    double best_score;
    // Sum of `logit * exp(logit - max)`, where rows are ranked by their entropy.
    double weighted;
    // Largest logit of those that may be chosen, and its token.
    float top_logit;
    u32 top;
};

struct HeadRow {
    u32 position;
    u32 may_end;
    u32 target;
};

struct HeadChoice {
    double temperature;
    u64 noise_key;
    u64 pass;
    float guidance;
    u32 has_guidance;
    u32 vocabulary;
    u32 mask;
    u32 end_count;
    u32 suppressed_count;
    u32 ends[16];
    u32 suppressed[16];
    // What logits go through first: `cap · tanh(logit / cap) · factor`; a cap of 0 is none.
    float cap;
    float factor;
    u32 wants_entropy;
    u32 wants_top;
};

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
DEVICE u64 mix(u64 z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// What a Gumbel-distributed number is made of; `place` stands for seed, pass and position.
DEVICE u64 draw(u64 place, u64 token) { return mix(place + token * 0x9e3779b97f4a7c15u); }

DEVICE double gumbel(u64 bits) {
    const double uniform = (double(bits >> 11) + 0.5) / double(1ull << 53);
    return -log(-log(uniform));
}

// No less than that: of the next larger number of 24 bits, with more to spare than two logarithms are off in f32. Home cards
// take 64 times as long for f64, and almost no token needs the number itself.
DEVICE float gumbel_at_most(u64 bits) {
    const float uniform = (float(bits >> 40) + 1.0f) / float(1 << 24);
    return -logf(-logf(uniform)) + 1e-3f;
}

DEVICE float scaled(float logit, const HeadChoice &choice) {
    // Exact to 1e-7 of the cap.
    if (choice.cap != 0.0f) logit = (1.0f - 2.0f / (expf(2.0f * logit / choice.cap) + 1.0f)) * choice.cap;
    return logit * choice.factor;
}

// Where there are `means`, logits become `exp(logit - max)`, by which the head's rows are to be summed, and what was summed
// so of earlier pieces, `mean_width` numbers a row, is brought to the new largest logit.
KERNEL_FUNCTION head_reduce(HeadState *states, float *all_logits, const HeadRow *rows, u32 row_count, u32 columns,
                            u32 first, const __grid_constant__ HeadChoice choice, float *means, u32 mean_width) {
    const HeadRow row = rows[blockIdx.x];
    float *logits = all_logits + u64(blockIdx.x) * columns;
    const float minus_infinity = -infinity();
    // Where in the piece a token is, or beyond it: what lies before wraps around.
    const auto forbid = [&](u32 token) {
        if (token - first < columns) logits[token - first] = minus_infinity;
    };

    if (choice.has_guidance != 0) {
        const float *plain = all_logits + (u64(row_count) + blockIdx.x) * columns;
        for (u32 i = threadIdx.x; i < columns; i += REDUCE_THREADS) {
            logits[i] = plain[i] + (choice.guidance + 1.0f) * (logits[i] - plain[i]);
        }
        __syncthreads();
    }
    if (choice.cap != 0.0f || choice.factor != 1.0f) {
        for (u32 i = threadIdx.x; i < columns; i += REDUCE_THREADS) logits[i] = scaled(logits[i], choice);
        __syncthreads();
    }
    for (u32 i = threadIdx.x; i < choice.suppressed_count; i += REDUCE_THREADS) forbid(choice.suppressed[i]);
    __syncthreads();

    HeadState state = states[blockIdx.x];
    if (row.target != Best<float>::NONE && row.target - first < columns) {
        state.target_logit = logits[row.target - first];
    }

    float max = minus_infinity;
    for (u32 i = threadIdx.x; i < columns; i += REDUCE_THREADS) max = fmaxf(max, logits[i]);
    max = reduce_block(max, [](float a, float b) { return fmaxf(a, b); });
    float shrink = 1.0f;
    if (max > state.max) {
        shrink = expf(state.max - max);
        state.sum *= double(shrink);
        state.weighted *= double(shrink);
        state.max = max;
    }
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < columns; i += REDUCE_THREADS) sum += double(expf(logits[i] - state.max));
    sum = sum_of_block(sum);
    if (state.max != minus_infinity) state.sum += sum;
    if (choice.wants_entropy != 0) {
        double weighted = 0.0;
        for (u32 i = threadIdx.x; i < columns; i += REDUCE_THREADS) {
            // −∞ · 0 is no number.
            if (logits[i] > minus_infinity) weighted += double(expf(logits[i] - state.max)) * double(logits[i]);
        }
        state.weighted += sum_of_block(weighted);
    }

    // What can't be chosen still counted for the sum.
    if (threadIdx.x == 0) forbid(choice.mask);
    if (row.may_end == 0) {
        for (u32 i = threadIdx.x; i < choice.end_count; i += REDUCE_THREADS) forbid(choice.ends[i]);
    }
    __syncthreads();

    const u64 place = choice.noise_key ^ mix(choice.pass << 32 | row.position);
    const u32 used = min(columns, choice.vocabulary > first ? choice.vocabulary - first : 0);
    Best<double> best = {minus_infinity, Best<double>::NONE};
    for (u32 i = threadIdx.x; i < used; i += REDUCE_THREADS) {
        const float logit = logits[i];
        double score = logit;
        if (choice.temperature > 0.0 && logit > minus_infinity) {
            const u64 bits = draw(place, first + i);
            if (score + choice.temperature * double(gumbel_at_most(bits)) <= best.score) continue;
            score += choice.temperature * gumbel(bits);
        }
        if (score > best.score) best = {score, first + i};
    }
    best = best_of_block(best);
    if (choice.wants_top != 0) {
        Best<float> top = {minus_infinity, Best<float>::NONE};
        for (u32 i = threadIdx.x; i < used; i += REDUCE_THREADS) {
            if (logits[i] > top.score) top = {logits[i], first + i};
        }
        top = best_of_block(top);
        if (top.score > state.top_logit) {
            state.top_logit = top.score;
            state.top = top.token;
        }
    }

    if (threadIdx.x == 0) {
        if (best.score > state.best_score) {
            state.best_score = best.score;
            state.best = best.token;
            state.best_logit = logits[best.token - first];
        }
        states[blockIdx.x] = state;
    }
    if (means == nullptr) return;
    // The best logit was read before it is overwritten.
    __syncthreads();
    for (u32 i = threadIdx.x; i < columns; i += REDUCE_THREADS) {
        logits[i] = logits[i] > minus_infinity ? expf(logits[i] - state.max) : 0.0f;
    }
    if (shrink == 1.0f) return;
    means += u64(blockIdx.x) * mean_width;
    for (u32 i = threadIdx.x; i < mean_width; i += REDUCE_THREADS) means[i] *= shrink;
}

// What was summed becomes means, once all logits were taken.
KERNEL_FUNCTION head_means(float *means, const HeadState *states, u32 width) {
    const float sum = float(states[blockIdx.x].sum);
    means += u64(blockIdx.x) * width;
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) means[i] /= sum;
}
