// RWKV-7's layers between their products: the shift of tokens, and the recurrence of heads with all that it takes.
//
// Paper: Peng et al. 2025, RWKV-7 Goose with Expressive Dynamic State Evolution. It follows `ops/src/cpu/rwkv7.rs` of
// the engine, in other orders of sums.

#pragma once

#include "elementwise.cuh"

// Some of the runs of a pass, each of consecutive rows of one sequence, by value: no GPU memory is kept for them.
struct StateRuns {
    static constexpr u32 MAX = 32;
    // Of each what it reads of a state, and what it writes.
    const float *before[MAX];
    float *after[MAX];
    // Its first row, and the one behind its last.
    u32 start[MAX], end[MAX];
};

// Each row mixed with the one before it, a block a row. A run's first row has the one before it in the state, unless the
// run follows another of the pass (null).
template <class T>
DEVICE void shift_mix(T *out, const T *x, const float *shares, u32 first, u32 width, const StateRuns &runs, u32 count) {
    const u32 row = first + blockIdx.x;
    const float *kept = nullptr;
    for (u32 i = 0; i < count; i++) {
        if (runs.start[i] == row) kept = runs.before[i];
    }
    x += u64(row) * width;
    out += u64(blockIdx.x) * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        const float value = widen(x[i]), before = kept != nullptr ? kept[i] : widen(*(x + i - width));
        out[i] = narrow<T>(value + (before - value) * shares[i]);
    }
}

// The last row of each run goes to its state. The grid's second dimension is the runs'.
template <class T> DEVICE void keep_inputs(const T *x, u32 width, const StateRuns &runs) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x, run = blockIdx.y;
    if (i < width) runs.after[run][i] = widen(x[u64(runs.end[run] - 1) * width + i]);
}

// What the time mix reads: rows of heads, and the vectors of the layer as `TimeMixVector` of the engine numbers them.
template <class T> struct TimeMix {
    const T *receptance, *decay, *key, *value, *learning_rate, *gate;
    // Null in the first layer: its values, and how much of them is taken over.
    const T *first_value, *taken;
    const float *vectors;
};

// The time mix of a head of a run. The block takes eight tokens at a time, each of its warps one of them: it makes what the
// recurrence reads of that token in shared memory. Then all threads go through the tokens in their order, with the state in
// registers from the run's first token to its last: four threads share a column, that of a value channel, each with sixteen
// of its keys. Then each warp norms and gates its own token. So threads wait for each other twice for eight tokens, and the
// tokens' rows are waited for together.
constexpr u32 TIME_MIX_THREADS = 256;

template <class T> struct TimeMixHead {
    static constexpr u32 DIM = 64, TOKENS = TIME_MIX_THREADS / WARP, PARTS = TIME_MIX_THREADS / DIM, KEYS = DIM / PARTS;
    // Channels of a lane, WARP apart.
    static constexpr u32 EACH = DIM / WARP;
    // e^-0.5: a channel decays by exp(-e^-0.5 · sigmoid(x)).
    static constexpr float DECAY_SCALE = -0.60653066f;
    // The least length that a removal key is divided by.
    static constexpr float LENGTH_MIN = 1e-12f;

    struct Shared {
        // Of each token the factors of the state's rows, the key whose value is removed (negative), the key at which it
        // is put back by the learning rate, the key, the receptance, and the value.
        float decay[TOKENS][DIM], removal[TOKENS][DIM], replacement[TOKENS][DIM], key[TOKENS][DIM];
        float receptance[TOKENS][DIM], value[TOKENS][DIM];
        // What the state gives for it.
        float out[TOKENS][DIM];
    };

    Shared &shared;
    float state[KEYS];

    DEVICE TimeMixHead(Shared &shared) : shared(shared) {}

    // The column that a thread has a part of, and the first keys of that part; groups of four keys are PARTS groups apart,
    // so that a column's threads read shared memory in different banks.
    static DEVICE u32 column() { return threadIdx.x / PARTS; }
    static DEVICE u32 first_key() { return threadIdx.x % PARTS * 4; }
    static DEVICE u32 key_of(u32 i) { return i / 4 * (4 * PARTS) + i % 4; }

    DEVICE void load(const float *matrix) {
        const float *from = matrix + first_key() * DIM + column();
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) state[i] = from[key_of(i) * DIM];
    }

    DEVICE void store(float *matrix) const {
        float *to = matrix + first_key() * DIM + column();
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) to[key_of(i) * DIM] = state[i];
    }

    // The sum over a group of neighbouring lanes.
    template <u32 LANES> static DEVICE float sum_of_lanes(float value) {
#pragma unroll
        for (u32 far = LANES / 2; far > 0; far /= 2) value += __shfl_xor_sync(0xffffffffu, value, far);
        return value;
    }

    // A token through the state.
    DEVICE void recur(u32 token) {
        const u32 first = first_key();
        const float value = shared.value[token][column()];
        // Four sums, so that none waits for the one before.
        float removed[4] = {}, out[4] = {};
#pragma unroll
        for (u32 i = 0; i < KEYS; i += 4) {
            float removal[4];
            four_of(shared.removal[token] + first + key_of(i), removal);
#pragma unroll
            for (u32 j = 0; j < 4; j++) removed[j] = fmaf(state[i + j], removal[j], removed[j]);
        }
        const float all = sum_of_lanes<PARTS>((removed[0] + removed[1]) + (removed[2] + removed[3]));
#pragma unroll
        for (u32 i = 0; i < KEYS; i += 4) {
            const u32 at = first + key_of(i);
            float decay[4], key[4], replacement[4], receptance[4];
            four_of(shared.decay[token] + at, decay);
            four_of(shared.key[token] + at, key);
            four_of(shared.replacement[token] + at, replacement);
            four_of(shared.receptance[token] + at, receptance);
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const float kept = fmaf(state[i + j], decay[j], value * key[j]);
                state[i + j] = fmaf(all, replacement[j], kept);
                out[j] = fmaf(state[i + j], receptance[j], out[j]);
            }
        }
        const float sum = sum_of_lanes<PARTS>((out[0] + out[1]) + (out[2] + out[3]));
        if (first == 0) shared.out[token][column()] = sum;
    }

    static DEVICE void four_of(const float *from, float (&four)[4]) {
        const float4 read = *reinterpret_cast<const float4 *>(from);
        four[0] = read.x;
        four[1] = read.y;
        four[2] = read.z;
        four[3] = read.w;
    }

    // All rows from `start` to `end`, `width` numbers each.
    DEVICE void run(T *out, const TimeMix<T> &of, u32 start, u32 end, u32 width, float epsilon) {
        const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        const float *vectors = of.vectors + blockIdx.x * DIM + lane;
        const auto vector = [&](u32 row, u32 channel) { return vectors[u64(row) * width + channel]; };
#pragma unroll 1
        for (u32 from = start; from < end; from += TOKENS) {
            const u32 tokens = min(TOKENS, end - from);
            const u64 at = u64(from + warp) * width + blockIdx.x * DIM + lane;
            // How much of its own value is added to the token's output.
            float present = 0.0f;
            if (warp < tokens) {
                float removal[EACH], rate[EACH], length = 0.0f;
#pragma unroll
                for (u32 i = 0; i < EACH; i++) {
                    const u32 channel = i * WARP;
                    const u64 here = at + channel;
                    const float decay = sigmoid(widen(of.decay[here]) + vector(0, channel));
                    shared.decay[warp][lane + channel] = expf(DECAY_SCALE * decay);
                    rate[i] = sigmoid(widen(of.learning_rate[here]) + vector(1, channel));
                    float key = widen(of.key[here]);
                    removal[i] = key * vector(2, channel);
                    length += removal[i] * removal[i];
                    key *= 1.0f + (rate[i] - 1.0f) * vector(3, channel);
                    shared.key[warp][lane + channel] = key;
                    const float receptance = widen(of.receptance[here]);
                    shared.receptance[warp][lane + channel] = receptance;
                    present += receptance * (key * vector(4, channel));
                    float value = widen(of.value[here]);
                    if (of.first_value != nullptr) {
                        const float share = sigmoid(widen(of.taken[here]) + vector(7, channel));
                        value += (widen(of.first_value[here]) - value) * share;
                    }
                    shared.value[warp][lane + channel] = value;
                }
                length = fmaxf(sqrtf(sum_of_lanes<WARP>(length)), LENGTH_MIN);
                present = sum_of_lanes<WARP>(present);
#pragma unroll
                for (u32 i = 0; i < EACH; i++) {
                    const float unit = removal[i] / length;
                    shared.removal[warp][lane + i * WARP] = -unit;
                    shared.replacement[warp][lane + i * WARP] = unit * rate[i];
                }
            }
            __syncthreads();
#pragma unroll 1
            for (u32 token = 0; token < tokens; token++) recur(token);
            __syncthreads();
            if (warp >= tokens) continue;
            float centered[EACH], sum = 0.0f, squares = 0.0f;
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                centered[i] = shared.out[warp][lane + i * WARP];
                sum += centered[i];
            }
            const float mean = sum_of_lanes<WARP>(sum) / float(DIM);
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                centered[i] -= mean;
                squares += centered[i] * centered[i];
            }
            const float inverse = 1.0f / sqrtf(sum_of_lanes<WARP>(squares) / float(DIM) + epsilon);
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                const u32 channel = i * WARP;
                const float normed = centered[i] * inverse * vector(5, channel) + vector(6, channel);
                const float value = shared.value[warp][lane + channel];
                out[at + channel] = narrow<T>((normed + present * value) * widen(of.gate[at + channel]));
            }
        }
    }
};

#define RWKV7_KERNELS(T) \
    KERNEL_FUNCTION shift_mix_##T(number::T *out, const number::T *x, const float *shares, u32 first, u32 width, \
                                  const __grid_constant__ StateRuns runs, u32 count) { \
        shift_mix(out, x, shares, first, width, runs, count); \
    } \
    KERNEL_FUNCTION keep_inputs_##T(const number::T *x, u32 width, const __grid_constant__ StateRuns runs) { \
        keep_inputs(x, width, runs); \
    } \
    KERNEL_FUNCTION __launch_bounds__(TIME_MIX_THREADS, 4) \
        time_mix_##T(number::T *out, const __grid_constant__ TimeMix<number::T> of, u32 width, float epsilon, \
                     const __grid_constant__ StateRuns runs) { \
        using Head = TimeMixHead<number::T>; \
        __shared__ __align__(16) typename Head::Shared shared; \
        const u32 run = blockIdx.y, matrix = blockIdx.x * Head::DIM * Head::DIM; \
        Head head(shared); \
        head.load(runs.before[run] + matrix); \
        head.run(out, of, runs.start[run], runs.end[run], width, epsilon); \
        head.store(runs.after[run] + matrix); \
    }
