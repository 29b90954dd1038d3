// What queries pay attention to of some rows of keys: the soft-max over those rows alone, summed over the queries. A first
// kernel finds what each query's soft-max is taken from, a second one sums it for each head and key.
//
// A thread stands for a key, whose scores with eight queries it has at once; queries are read by all threads alike. This
// happens once a block of a canvas, so `f32` arithmetic will do.

#pragma once

#include "attention.cuh"

constexpr u32 SALIENCE_THREADS = 128;
constexpr u32 SALIENCE_QUERIES = 8;
// Numbers of a head that are in shared memory at once, and the most that it has.
constexpr u32 SALIENCE_SLICE = 64;
constexpr u32 SALIENCE_DIM = 256;
// Groups of four stay aligned, and those of eight rows lie in different banks.
constexpr u32 SALIENCE_STRIDE = SALIENCE_SLICE + 4;

// What a query's scores are taken from, and what their exponentials are multiplied by.
struct Softmax {
    float max;
    float inverse;
};

// Puts a run of a row where all can read it, widened.
template <class T> DEVICE void widen_run(float *to, const u8 *row, u32 at, u32 width, bool is_there) {
    using Numbers = format::Dense<T>;
    typename Numbers::Run run = {};
    if (is_there && at < width) run = format::fetch_within<Numbers>(row, at, width);
    float values[Numbers::RUN];
    Numbers::decode(run, values);
#pragma unroll
    for (u32 i = 0; i < Numbers::RUN; i++) to[i] = values[i];
}

// Eight queries of a head and the keys of the segments, `all` in number.
template <class T> struct Salience {
    const T *q;
    const T *k;
    const Segment *segments;
    u32 segment_count;
    u32 queries, all, heads, kv_heads, head_dim;
    float scale;
    // In shared memory: the queries, a slice of a tile of keys, and the tile's rows.
    float *shared_queries;
    float *tile;
    u32 *rows;

    DEVICE u32 head() const { return blockIdx.y; }

    // The row of the key that stands there among all.
    DEVICE u32 row_of(u32 index) const {
        u32 segment = 0;
        while (segment + 1 < segment_count && index >= segments[segment].len) index -= segments[segment++].len;
        return segments[segment].start + index;
    }

    DEVICE void load_queries(u32 first) const {
        constexpr u32 RUN = format::Dense<T>::RUN;
        const u64 row_bytes = u64(heads) * head_dim * sizeof(T);
        const u8 *from = reinterpret_cast<const u8 *>(q + (u64(first) * heads + head()) * head_dim);
        for (u32 i = threadIdx.x; i < SALIENCE_QUERIES * SALIENCE_DIM / RUN; i += SALIENCE_THREADS) {
            const u32 query = i * RUN / SALIENCE_DIM, at = i * RUN % SALIENCE_DIM;
            widen_run<T>(shared_queries + query * SALIENCE_DIM + at, from + query * row_bytes, at, head_dim,
                         first + query < queries);
        }
    }

    // Scores of this thread's key of the tile from `first` on.
    DEVICE void score(u32 first, float (&scores)[SALIENCE_QUERIES]) const {
        constexpr u32 RUN = format::Dense<T>::RUN, RUNS_OF_ROW = SALIENCE_SLICE / RUN;
        const u64 row_bytes = u64(kv_heads) * head_dim * sizeof(T);
        const u8 *from = reinterpret_cast<const u8 *>(k + u64(head()) * kv_heads / heads * head_dim);
        rows[threadIdx.x] = row_of(min(first + threadIdx.x, all - 1));
#pragma unroll
        for (u32 i = 0; i < SALIENCE_QUERIES; i++) scores[i] = 0.0f;
        for (u32 slice = 0; slice < head_dim; slice += SALIENCE_SLICE) {
            __syncthreads();
            for (u32 i = threadIdx.x; i < SALIENCE_THREADS * RUNS_OF_ROW; i += SALIENCE_THREADS) {
                const u32 row = i / RUNS_OF_ROW, at = i % RUNS_OF_ROW * RUN;
                widen_run<T>(tile + row * SALIENCE_STRIDE + at, from + rows[row] * row_bytes, slice + at, head_dim, true);
            }
            __syncthreads();
            for (u32 d = 0; d < SALIENCE_SLICE; d += 4) {
                float key[4];
                four_at(tile + threadIdx.x * SALIENCE_STRIDE + d, key);
#pragma unroll
                for (u32 i = 0; i < SALIENCE_QUERIES; i++) {
                    float query[4];
                    four_at(shared_queries + i * SALIENCE_DIM + slice + d, query);
#pragma unroll
                    for (u32 j = 0; j < 4; j++) scores[i] = fmaf(query[j], key[j], scores[i]);
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < SALIENCE_QUERIES; i++) scores[i] *= scale;
    }
};

// A block takes eight queries of a head, and goes through all keys.
template <class T> DEVICE void salience_queries(Softmax *out, const Salience<T> &salience) {
    constexpr u32 WARPS = SALIENCE_THREADS / WARP;
    __shared__ Softmax parts[SALIENCE_QUERIES][WARPS];
    const u32 first_query = blockIdx.x * SALIENCE_QUERIES;
    salience.load_queries(first_query);
    float max[SALIENCE_QUERIES], sum[SALIENCE_QUERIES];
#pragma unroll
    for (u32 i = 0; i < SALIENCE_QUERIES; i++) {
        max[i] = -infinity();
        sum[i] = 0.0f;
    }
    for (u32 first = 0; first < salience.all; first += SALIENCE_THREADS) {
        float scores[SALIENCE_QUERIES];
        salience.score(first, scores);
        if (first + threadIdx.x >= salience.all) continue;
#pragma unroll
        for (u32 i = 0; i < SALIENCE_QUERIES; i++) {
            const float larger = fmaxf(max[i], scores[i]), base = finite_max(larger);
            sum[i] = sum[i] * expf(max[i] - base) + expf(scores[i] - base);
            max[i] = larger;
        }
    }
#pragma unroll
    for (u32 i = 0; i < SALIENCE_QUERIES; i++) {
        float all_max = max[i];
#pragma unroll
        for (u32 far = WARP / 2; far > 0; far /= 2) all_max = fmaxf(all_max, __shfl_xor_sync(0xffffffffu, all_max, far));
        float all_sum = sum[i] * expf(max[i] - finite_max(all_max));
#pragma unroll
        for (u32 far = WARP / 2; far > 0; far /= 2) all_sum += __shfl_xor_sync(0xffffffffu, all_sum, far);
        if (threadIdx.x % WARP == 0) parts[i][threadIdx.x / WARP] = {all_max, all_sum};
    }
    __syncthreads();
    const u32 query = first_query + threadIdx.x;
    if (threadIdx.x >= SALIENCE_QUERIES || query >= salience.queries) return;
    float largest = -infinity(), total = 0.0f;
    for (u32 warp = 0; warp < WARPS; warp++) largest = fmaxf(largest, parts[threadIdx.x][warp].max);
    const float base = finite_max(largest);
    for (u32 warp = 0; warp < WARPS; warp++) {
        total += parts[threadIdx.x][warp].inverse * expf(parts[threadIdx.x][warp].max - base);
    }
    out[u64(salience.head()) * salience.queries + query] = {base, inverse_of_sum(total)};
}

// A block takes a tile of keys of a head, and goes through all queries.
template <class T> DEVICE void salience_keys(float *out, const Softmax *softmaxes, const Salience<T> &salience) {
    const u32 first = blockIdx.x * SALIENCE_THREADS;
    softmaxes += u64(salience.head()) * salience.queries;
    float sum = 0.0f;
    for (u32 query = 0; query < salience.queries; query += SALIENCE_QUERIES) {
        // The queries before were read by all.
        __syncthreads();
        salience.load_queries(query);
        float scores[SALIENCE_QUERIES];
        salience.score(first, scores);
#pragma unroll
        for (u32 i = 0; i < SALIENCE_QUERIES; i++) {
            if (query + i >= salience.queries) continue;
            const Softmax softmax = softmaxes[query + i];
            sum += expf(scores[i] - softmax.max) * softmax.inverse;
        }
    }
    if (first + threadIdx.x < salience.all) out[u64(salience.head()) * salience.all + first + threadIdx.x] = sum;
}

#define SALIENCE_PARAMETERS(T) \
    const number::T *q, const number::T *k, const Segment *segments, u32 segment_count, u32 queries, u32 all, u32 heads, \
        u32 kv_heads, u32 head_dim, float scale
#define SALIENCE(T) \
    __shared__ __align__(16) float shared_queries[SALIENCE_QUERIES * SALIENCE_DIM]; \
    __shared__ __align__(16) float tile[SALIENCE_THREADS * SALIENCE_STRIDE]; \
    __shared__ u32 rows[SALIENCE_THREADS]; \
    const Salience<number::T> salience = {q,     k,        segments, segment_count,  queries, all, heads, kv_heads, \
                                          head_dim, scale, shared_queries, tile, rows};
#define SALIENCE_KERNELS(T) \
    KERNEL_FUNCTION __launch_bounds__(SALIENCE_THREADS) salience_queries_##T(Softmax *out, SALIENCE_PARAMETERS(T)) { \
        SALIENCE(T) \
        salience_queries(out, salience); \
    } \
    KERNEL_FUNCTION __launch_bounds__(SALIENCE_THREADS) \
        salience_keys_##T(float *out, const Softmax *softmaxes, SALIENCE_PARAMETERS(T)) { \
        SALIENCE(T) \
        salience_keys(out, softmaxes, salience); \
    }
