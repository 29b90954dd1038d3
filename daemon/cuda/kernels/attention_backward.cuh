// Gradients of attention, in `f32` arithmetic. Weights are computed again from queries and keys: a first kernel goes
// through each query's keys and finds what its soft-max is made of and its own gradient, a second one goes through each
// key's queries. No sum is shared, so that the order is fixed.
//
// Both multiply 16 rows of their own with tiles of 32 other rows: a score is a query times a key, a slope the gradient of
// a query's result times a value. A lane stands for an other row, and a warp has four of the block's own. For the sums of
// other rows a lane stands for two numbers of the head in each slice of it.

#pragma once

#include "attention.cuh"
#include "reduce.cuh"

constexpr u32 BACKWARD_WARPS = 4;
constexpr u32 BACKWARD_THREADS = BACKWARD_WARPS * WARP;
constexpr u32 WARP_OWN_ROWS = 4;
constexpr u32 OWN_ROWS = BACKWARD_WARPS * WARP_OWN_ROWS;
// Numbers of a head that are in shared memory at once, of other rows.
constexpr u32 BACKWARD_SLICE = 64;
// Groups of four stay aligned, and those of eight rows lie in different banks.
constexpr u32 BACKWARD_STRIDE = BACKWARD_SLICE + 4;

// Rows of a block, and the rows of the other side that they have to do with: keys that queries see, or queries that see
// keys.
struct BackwardTask {
    u32 own_start;
    u32 own_count;
    // Which row of its sequence the first one is.
    u32 own_index;
    // All other rows of the sequence.
    u32 other_start;
    u32 other_count;
    // So many of them before and behind a row's own place.
    u32 before;
    u32 after;

    // The first row of the others, and the first beyond.
    DEVICE u32 begin(u32 row) const {
        const u32 place = own_index + row;
        return place > before ? place - before : 0;
    }
    DEVICE u32 end(u32 row) const {
        const u32 place = own_index + row;
        return after < other_count && place + after < other_count ? place + after + 1 : other_count;
    }
};

// What a query's weights are made of, and the mean of its slopes by them.
struct QueryWeights {
    float max;
    float inverse;
    float mean;

    // Its weight for a key, from their score.
    DEVICE float of(float score) const { return expf(score - max) * inverse; }
};

// A head of some rows of a matrix, whose rows begin `stride` numbers apart.
template <class Number> struct HeadRows {
    const Number *first;
    u64 stride;

    DEVICE HeadRows(const Number *matrix, u32 row, u32 head, u32 heads, u32 head_dim)
        : first(matrix + (u64(row) * heads + head) * head_dim), stride(u64(heads) * head_dim) {}

    // Puts a part of `count` rows from `row` on in shared memory, `ROWS` times `COLUMNS`; what isn't there is zero.
    template <u32 ROWS, u32 COLUMNS>
    DEVICE void load(float *tile, u32 tile_stride, u32 row, u32 count, u32 at, u32 head_dim) const {
#pragma unroll 2
        for (u32 i = threadIdx.x; i < ROWS * COLUMNS; i += BACKWARD_THREADS) {
            const u32 r = i / COLUMNS, column = i % COLUMNS;
            const bool is_there = r < count && at + column < head_dim;
            tile[r * tile_stride + column] = is_there ? widen(first[(row + r) * stride + at + column]) : 0.0f;
        }
    }
};

// What a block has in shared memory.
template <u32 DIM> struct BackwardMemory {
    static constexpr u32 OWN_STRIDE = DIM + 4;
    float own[2][OWN_ROWS * OWN_STRIDE];
    float tile[TILE_KEYS * BACKWARD_STRIDE];

    // Products of the warp's own rows in one of the matrices with the lane's other row.
    template <class Number>
    DEVICE void products(float (&sums)[WARP_OWN_ROWS], u32 which, const HeadRows<Number> &others, u32 row, u32 count,
                         u32 head_dim) {
        const u32 lane = threadIdx.x % WARP;
        const float *own_rows = own[which] + threadIdx.x / WARP * WARP_OWN_ROWS * OWN_STRIDE;
#pragma unroll
        for (u32 i = 0; i < WARP_OWN_ROWS; i++) sums[i] = 0.0f;
#pragma unroll 1
        for (u32 slice = 0; slice < DIM; slice += BACKWARD_SLICE) {
            others.template load<TILE_KEYS, BACKWARD_SLICE>(tile, BACKWARD_STRIDE, row, count, slice, head_dim);
            __syncthreads();
#pragma unroll 2
            for (u32 d = 0; d < BACKWARD_SLICE; d += 4) {
                float other[4];
                four_at(tile + lane * BACKWARD_STRIDE + d, other);
#pragma unroll
                for (u32 i = 0; i < WARP_OWN_ROWS; i++) {
                    float values[4];
                    four_at(own_rows + i * OWN_STRIDE + slice + d, values);
#pragma unroll
                    for (u32 j = 0; j < 4; j++) sums[i] = fmaf(values[j], other[j], sums[i]);
                }
            }
            __syncthreads();
        }
    }

    // Adds other rows to the lane's numbers of the warp's own, by the factors in `corner`.
    template <class Number>
    DEVICE void add(float (&sums)[DIM / BACKWARD_SLICE][WARP_OWN_ROWS][2], const float *corner,
                    const HeadRows<Number> &others, u32 row, u32 count, u32 head_dim) {
        const u32 lane = threadIdx.x % WARP;
#pragma unroll
        for (u32 slice = 0; slice < DIM / BACKWARD_SLICE; slice++) {
            others.template load<TILE_KEYS, BACKWARD_SLICE>(tile, BACKWARD_STRIDE, row, count, slice * BACKWARD_SLICE,
                                                            head_dim);
            __syncthreads();
#pragma unroll 2
            for (u32 other = 0; other < TILE_KEYS; other++) {
                const float2 values = *reinterpret_cast<const float2 *>(tile + other * BACKWARD_STRIDE + 2 * lane);
#pragma unroll
                for (u32 i = 0; i < WARP_OWN_ROWS; i++) {
                    const float factor = corner[i * TILE_KEYS + other];
                    sums[slice][i][0] = fmaf(factor, values.x, sums[slice][i][0]);
                    sums[slice][i][1] = fmaf(factor, values.y, sums[slice][i][1]);
                }
            }
            __syncthreads();
        }
    }
};

// Writes what the warps have summed to the block's own rows of a matrix.
template <u32 DIM>
DEVICE void put_sums(float *matrix, const float (&sums)[DIM / BACKWARD_SLICE][WARP_OWN_ROWS][2], const BackwardTask &task,
                     u32 head, u32 heads, u32 head_dim, float scale) {
    const u32 first = threadIdx.x / WARP * WARP_OWN_ROWS, lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 i = 0; i < WARP_OWN_ROWS; i++) {
        if (first + i >= task.own_count) continue;
        float *to = matrix + (u64(task.own_start + first + i) * heads + head) * head_dim;
#pragma unroll
        for (u32 slice = 0; slice < DIM / BACKWARD_SLICE; slice++) {
            const u32 column = slice * BACKWARD_SLICE + 2 * lane;
            // Heads are whole pairs.
            if (column < head_dim) {
                to[column] = sums[slice][i][0] * scale;
                to[column + 1] = sums[slice][i][1] * scale;
            }
        }
    }
}

DEVICE float max_of_warp(float value) {
#pragma unroll
    for (u32 far = WARP / 2; far > 0; far /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, far));
    return value;
}

// For a block's queries.
template <class T, u32 DIM>
DEVICE void attend_backward_queries(float *d_q, QueryWeights *weights, const T *q, const T *k, const T *v,
                                    const float *d_out, BackwardTask task, u32 heads, u32 kv_heads, u32 head_dim,
                                    float scale) {
    __shared__ __align__(16) BackwardMemory<DIM> memory;
    __shared__ __align__(16) float corners[BACKWARD_WARPS][WARP_OWN_ROWS * TILE_KEYS];
    constexpr u32 OWN_STRIDE = BackwardMemory<DIM>::OWN_STRIDE;

    const u32 head = blockIdx.y, kv_head = u32(u64(head) * kv_heads / heads);
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 own = warp * WARP_OWN_ROWS;
    const HeadRows<T> queries(q, task.own_start, head, heads, head_dim);
    const HeadRows<float> gradients(d_out, task.own_start, head, heads, head_dim);
    const HeadRows<T> keys(k, task.other_start, kv_head, kv_heads, head_dim);
    const HeadRows<T> values(v, task.other_start, kv_head, kv_heads, head_dim);
    queries.template load<OWN_ROWS, DIM>(memory.own[0], OWN_STRIDE, 0, task.own_count, 0, head_dim);
    gradients.template load<OWN_ROWS, DIM>(memory.own[1], OWN_STRIDE, 0, task.own_count, 0, head_dim);
    __syncthreads();

    const u32 begin = task.begin(0), end = task.end(task.own_count - 1);
    float max[WARP_OWN_ROWS], sum[WARP_OWN_ROWS], slope_sum[WARP_OWN_ROWS];
#pragma unroll
    for (u32 i = 0; i < WARP_OWN_ROWS; i++) {
        max[i] = -infinity();
        sum[i] = slope_sum[i] = 0.0f;
    }
    for (u32 first = begin; first < end; first += TILE_KEYS) {
        const u32 count = min(TILE_KEYS, end - first), key = first + lane;
        float scores[WARP_OWN_ROWS], slopes[WARP_OWN_ROWS];
        memory.products(scores, 0, keys, first, count, head_dim);
        memory.products(slopes, 1, values, first, count, head_dim);
#pragma unroll
        for (u32 i = 0; i < WARP_OWN_ROWS; i++) {
            const bool is_seen = key >= task.begin(own + i) && key < task.end(own + i);
            const float score = is_seen ? scores[i] * scale : -infinity();
            const float tile_max = fmaxf(max[i], max_of_warp(score));
            const float base = finite_max(tile_max);
            const float weight = expf(score - base), shrink = expf(max[i] - base);
            max[i] = tile_max;
            sum[i] = sum[i] * shrink + sum_of_warp(weight);
            slope_sum[i] = slope_sum[i] * shrink + sum_of_warp(weight * slopes[i]);
        }
    }

    QueryWeights found[WARP_OWN_ROWS];
#pragma unroll
    for (u32 i = 0; i < WARP_OWN_ROWS; i++) {
        const float inverse = inverse_of_sum(sum[i]);
        found[i] = {finite_max(max[i]), inverse, slope_sum[i] * inverse};
        if (lane == 0 && own + i < task.own_count) weights[u64(task.own_start + own + i) * heads + head] = found[i];
    }

    float sums[DIM / BACKWARD_SLICE][WARP_OWN_ROWS][2] = {};
    float *corner = corners[warp];
    for (u32 first = begin; first < end; first += TILE_KEYS) {
        const u32 count = min(TILE_KEYS, end - first), key = first + lane;
        float scores[WARP_OWN_ROWS], slopes[WARP_OWN_ROWS];
        memory.products(scores, 0, keys, first, count, head_dim);
        memory.products(slopes, 1, values, first, count, head_dim);
#pragma unroll
        for (u32 i = 0; i < WARP_OWN_ROWS; i++) {
            const bool is_seen = key >= task.begin(own + i) && key < task.end(own + i);
            const float weight = is_seen ? found[i].of(scores[i] * scale) : 0.0f;
            corner[i * TILE_KEYS + lane] = weight * (slopes[i] - found[i].mean);
        }
        __syncwarp();
        memory.add(sums, corner, keys, first, count, head_dim);
    }
    put_sums<DIM>(d_q, sums, task, head, heads, head_dim, scale);
}

// For a block's keys and their values.
template <class T, u32 DIM>
DEVICE void attend_backward_keys(float *d_k, float *d_v, const QueryWeights *weights, const T *q, const T *k, const T *v,
                                 const float *d_out, BackwardTask task, u32 heads, u32 kv_heads, u32 head_dim,
                                 float scale) {
    __shared__ __align__(16) BackwardMemory<DIM> memory;
    __shared__ __align__(16) float corners[BACKWARD_WARPS][2][WARP_OWN_ROWS * TILE_KEYS];
    constexpr u32 OWN_STRIDE = BackwardMemory<DIM>::OWN_STRIDE;

    const u32 kv_head = blockIdx.y, group = heads / kv_heads;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 own = warp * WARP_OWN_ROWS;
    const HeadRows<T> keys(k, task.own_start, kv_head, kv_heads, head_dim);
    const HeadRows<T> values(v, task.own_start, kv_head, kv_heads, head_dim);
    keys.template load<OWN_ROWS, DIM>(memory.own[0], OWN_STRIDE, 0, task.own_count, 0, head_dim);
    values.template load<OWN_ROWS, DIM>(memory.own[1], OWN_STRIDE, 0, task.own_count, 0, head_dim);
    __syncthreads();

    const u32 begin = task.begin(0), end = task.end(task.own_count - 1);
    float key_sums[DIM / BACKWARD_SLICE][WARP_OWN_ROWS][2] = {}, value_sums[DIM / BACKWARD_SLICE][WARP_OWN_ROWS][2] = {};
    float *slope_corner = corners[warp][0], *weight_corner = corners[warp][1];
    for (u32 head = kv_head * group; head < (kv_head + 1) * group; head++) {
        const HeadRows<T> queries(q, task.other_start, head, heads, head_dim);
        const HeadRows<float> gradients(d_out, task.other_start, head, heads, head_dim);
        for (u32 first = begin; first < end; first += TILE_KEYS) {
            const u32 count = min(TILE_KEYS, end - first), query = first + lane;
            float scores[WARP_OWN_ROWS], slopes[WARP_OWN_ROWS];
            memory.products(scores, 0, queries, first, count, head_dim);
            memory.products(slopes, 1, gradients, first, count, head_dim);
            QueryWeights found = {};
            if (query < end) found = weights[u64(task.other_start + query) * heads + head];
#pragma unroll
            for (u32 i = 0; i < WARP_OWN_ROWS; i++) {
                const bool sees = query >= task.begin(own + i) && query < task.end(own + i);
                const float weight = sees ? found.of(scores[i] * scale) : 0.0f;
                weight_corner[i * TILE_KEYS + lane] = weight;
                slope_corner[i * TILE_KEYS + lane] = weight * (slopes[i] - found.mean);
            }
            __syncwarp();
            memory.add(key_sums, slope_corner, queries, first, count, head_dim);
            memory.add(value_sums, weight_corner, gradients, first, count, head_dim);
        }
    }
    put_sums<DIM>(d_k, key_sums, task, kv_head, kv_heads, head_dim, scale);
    put_sums<DIM>(d_v, value_sums, task, kv_head, kv_heads, head_dim, 1.0f);
}

#define ATTEND_BACKWARD_KERNELS(T, DIM) \
    KERNEL_FUNCTION __launch_bounds__(BACKWARD_THREADS, 2) \
        attend_backward_queries_##T##_##DIM(float *d_q, QueryWeights *weights, const number::T *q, const number::T *k, \
                                            const number::T *v, const float *d_out, const BackwardTask *tasks, u32 heads, \
                                            u32 kv_heads, u32 head_dim, float scale) { \
        attend_backward_queries<number::T, DIM>(d_q, weights, q, k, v, d_out, tasks[blockIdx.x], heads, kv_heads, \
                                                head_dim, scale); \
    } \
    KERNEL_FUNCTION __launch_bounds__(BACKWARD_THREADS, 2) \
        attend_backward_keys_##T##_##DIM(float *d_k, float *d_v, const QueryWeights *weights, const number::T *q, \
                                         const number::T *k, const number::T *v, const float *d_out, \
                                         const BackwardTask *tasks, u32 heads, u32 kv_heads, u32 head_dim, float scale) { \
        attend_backward_keys<number::T, DIM>(d_k, d_v, weights, q, k, v, d_out, tasks[blockIdx.x], heads, kv_heads, \
                                             head_dim, scale); \
    }
