// Attention in 16-bit numbers on the matrix units, with a soft-max that goes along with the keys: scores exist for a tile
// of queries and keys, never for a whole canvas (Dao 2023, FlashAttention-2).
//
// A block takes 64 queries of a head, and each of its warps 16 of them. A matrix's place in a warp's lanes is not known,
// so scores and products pass through a corner of shared memory that is the warp's own; there two lanes take a row.
//
// Of the longest heads, two warps SHARE 16 queries, since one has no registers for a whole row of the result: of each 64
// numbers of a head, each takes 32. Each then has a part of every score, which they add up, and does the soft-max itself.

#pragma once

#include "attention.cuh"

constexpr u32 ATTEND_WARPS = 4;
constexpr u32 ATTEND_THREADS = ATTEND_WARPS * WARP;

// The warps that have the same queries wait for each other.
template <u32 SHARE> DEVICE void sync_sharing() {
    if (SHARE == 1) {
        __syncwarp();
    } else {
        __syncthreads();
    }
}

// Heads of up to DIM numbers, of which SLICE of a tile of keys or values are in shared memory at once. Where SHARE warps
// have the same queries, a task is one for as many blocks, each with its `part` of the queries.
template <class T, u32 DIM, u32 SLICE, u32 SHARE>
DEVICE void attend(T *out, const T *q, const T *k, const T *v, Task task, Sight sight, const Segment *segments, u32 heads,
                   u32 kv_heads, u32 head_dim, float scale, u32 part) {
    using namespace nvcuda;
    constexpr u32 QUERIES = 16 * ATTEND_WARPS / SHARE;
    constexpr u32 QUERY_STRIDE = DIM + 8, STRIDE = SLICE + 8;
    // Of the corner: scores or products in `f32`, then the scores' exponentials in T.
    constexpr u32 CORNER_STRIDE = TILE_KEYS + 4, WEIGHT_STRIDE = TILE_KEYS + 8;
    using Rows = Share<format::Dense<T>, TILE_KEYS, SLICE, ATTEND_THREADS>;

    __shared__ __align__(128) T queries[QUERIES * QUERY_STRIDE];
    __shared__ __align__(128) T tile[TILE_KEYS * STRIDE];
    __shared__ __align__(128) float corners[ATTEND_WARPS][16 * CORNER_STRIDE];

    const u32 head = blockIdx.y, kv_head = u32(u64(head) * kv_heads / heads);
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    // The warp's first query among the block's, and which of each SHARE groups of 32 numbers it takes.
    const u32 own = warp / SHARE * 16, group = warp % SHARE;
    const u64 q_bytes = u64(heads) * head_dim * sizeof(T), kv_bytes = u64(kv_heads) * head_dim * sizeof(T);
    const u32 first = part * QUERIES;
    if (first >= task.query_count) return;
    const u64 q_at = (u64(task.query_start + first) * heads + head) * head_dim;

    copy_tile<T, QUERIES, DIM, ATTEND_THREADS>(queries, QUERY_STRIDE, q + q_at, q_bytes, task.query_count - first, 0,
                                               head_dim);

    // Keys and values pass through the same tile; the next to come is fetched while the present one is used.
    Rows share;
    const auto fetch = [&](const T *matrix, const KeyTiles &keys, u32 slice) {
        const T *from = matrix + (u64(keys.row()) * kv_heads + kv_head) * head_dim;
        share.fetch(reinterpret_cast<const u8 *>(from), kv_bytes, keys.count(), slice * SLICE, head_dim);
    };

    float *corner = corners[warp];
    T *weights = reinterpret_cast<T *>(corner);
    const T *queries_of_warp = queries + own * QUERY_STRIDE;
    // A lane's row, and the half of the row that it takes.
    const u32 row = lane / 2, side = lane % 2;
    float max = -infinity(), sum = 0.0f;
    float result[DIM / SHARE / 16][8] = {};

    const u32 query = first + own + row;
    const u32 own_begin = sight.begin(task, query), own_end = sight.end(task, query);
    KeyTiles keys(segments, task, sight, first, min(task.query_count, first + QUERIES) - 1);
    if (keys.more()) fetch(k, keys, 0);
    while (keys.more()) {
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> scores[TILE_KEYS / 16];
#pragma unroll
        for (u32 n = 0; n < TILE_KEYS / 16; n++) wmma::fill_fragment(scores[n], 0.0f);
#pragma unroll 1
        for (u32 slice = 0; slice < DIM / SLICE; slice++) {
            share.store(tile, STRIDE);
            __syncthreads();
            if (slice + 1 < DIM / SLICE) {
                fetch(k, keys, slice + 1);
            } else {
                fetch(v, keys, 0);
            }
#pragma unroll 2
            for (u32 d = 16 * group; d < SLICE; d += 16 * SHARE) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> a;
                wmma::load_matrix_sync(a, queries_of_warp + slice * SLICE + d, QUERY_STRIDE);
#pragma unroll
                for (u32 n = 0; n < TILE_KEYS / 16; n++) {
                    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> b;
                    wmma::load_matrix_sync(b, tile + 16 * n * STRIDE + d, STRIDE);
                    wmma::mma_sync(scores[n], a, b, scores[n]);
                }
            }
            __syncthreads();
        }

#pragma unroll
        for (u32 n = 0; n < TILE_KEYS / 16; n++) {
            wmma::store_matrix_sync(corner + 16 * n, scores[n], CORNER_STRIDE, wmma::mem_row_major);
        }
        sync_sharing<SHARE>();
        const u32 unseen = keys.count_before(own_begin), seen = keys.count_before(own_end);
        float values[16];
        float tile_max = max;
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            const u32 key = 16 * side + i;
            float score = corners[warp - group][row * CORNER_STRIDE + key];
#pragma unroll
            for (u32 other = 1; other < SHARE; other++) {
                score += corners[warp - group + other][row * CORNER_STRIDE + key];
            }
            values[i] = key >= unseen && key < seen ? score * scale : -infinity();
            tile_max = fmaxf(tile_max, values[i]);
        }
        tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffffu, tile_max, 1));
        const float base = finite_max(tile_max);
        const float shrink = expf(max - base);
        max = tile_max;
        float tile_sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            values[i] = expf(values[i] - base);
            tile_sum += values[i];
        }
        sum = sum * shrink + (tile_sum + __shfl_xor_sync(0xffffffffu, tile_sum, 1));
        // The exponentials lie where the scores did: first all are read.
        sync_sharing<SHARE>();
        u32 *pairs = reinterpret_cast<u32 *>(weights + row * WEIGHT_STRIDE + 16 * side);
#pragma unroll
        for (u32 i = 0; i < 8; i++) pairs[i] = pair<T>(values[2 * i], values[2 * i + 1]);
        __syncwarp();
        wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> weight[TILE_KEYS / 16];
#pragma unroll
        for (u32 n = 0; n < TILE_KEYS / 16; n++) wmma::load_matrix_sync(weight[n], weights + 16 * n, WEIGHT_STRIDE);
        __syncwarp();

        KeyTiles next = keys;
        next.next();
#pragma unroll
        for (u32 slice = 0; slice < DIM / SLICE; slice++) {
            share.store(tile, STRIDE);
            __syncthreads();
            if (slice + 1 < DIM / SLICE) {
                fetch(v, keys, slice + 1);
            } else if (next.more()) {
                fetch(k, next, 0);
            }
#pragma unroll
            for (u32 d = 0; d < SLICE / SHARE; d += 32) {
                const u32 column = d * SHARE + 32 * group;
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    wmma::fragment<wmma::accumulator, 16, 16, 16, float> product;
                    wmma::fill_fragment(product, 0.0f);
#pragma unroll
                    for (u32 n = 0; n < TILE_KEYS / 16; n++) {
                        wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::row_major> b;
                        wmma::load_matrix_sync(b, tile + 16 * n * STRIDE + column + 16 * half, STRIDE);
                        wmma::mma_sync(product, weight[n], b, product);
                    }
                    wmma::store_matrix_sync(corner + 16 * half, product, CORNER_STRIDE, wmma::mem_row_major);
                }
                __syncwarp();
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const float *from = corner + row * CORNER_STRIDE + 16 * half + 8 * side;
                    float(&to)[8] = result[(slice * SLICE / SHARE + d) / 16 + half];
#pragma unroll
                    for (u32 i = 0; i < 8; i++) to[i] = fmaf(to[i], shrink, from[i]);
                }
                __syncwarp();
            }
            __syncthreads();
        }
        keys = next;
    }

    if (query >= task.query_count) return;
    const float inverse = inverse_of_sum(sum);
    T *to = out + q_at + u64(own + row) * heads * head_dim;
#pragma unroll
    for (u32 d = 0; d < DIM / SHARE / 16; d++) {
#pragma unroll
        for (u32 i = 0; i < 8; i += 2) {
            const u32 column = (d / 2 * SHARE + group) * 32 + d % 2 * 16 + 8 * side + i;
            // Heads are whole pairs, so that pairs are aligned.
            if (column < head_dim) {
                *reinterpret_cast<u32 *>(to + column) = pair<T>(result[d][i] * inverse, result[d][i + 1] * inverse);
            }
        }
    }
}

// So many BLOCKS run on a processor at once, in its registers and in 100 KiB of shared memory: a block waits for memory at
// each slice, and others compute meanwhile. A whole head of 128 at a time would leave room for two.
#define ATTEND_KERNEL(T, DIM, SLICE, SHARE, BLOCKS) \
    KERNEL_FUNCTION __launch_bounds__(ATTEND_THREADS, BLOCKS) attend_##T##_##DIM(ATTEND_PARAMETERS(T)) { \
        attend<number::T, DIM, SLICE, SHARE>(ATTEND_ARGUMENTS(blockIdx.x / SHARE), blockIdx.x % SHARE); \
    }
#define ATTEND_KERNELS(T) \
    ATTEND_KERNEL(T, 64, 64, 1, 4) \
    ATTEND_KERNEL(T, 128, 64, 1, 3) \
    ATTEND_KERNEL(T, 256, 64, 1, 2) \
    ATTEND_KERNEL(T, 512, 64, 2, 2)
