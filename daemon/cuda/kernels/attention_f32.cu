// Attention in `f32`, with a soft-max that goes along with the keys as in `attention_half.cuh`. A block takes 32 queries,
// half of what a task may have, and a warp 8 of them; of the longest heads half as many. For the scores a lane stands for a key, for the result for two
// numbers of the head in each slice of it; the exponentials go from the one to the other through a corner of shared
// memory.

#include "salience.cuh"

constexpr u32 SCALAR_WARPS = 4;
constexpr u32 SCALAR_THREADS = SCALAR_WARPS * WARP;
// Numbers of a head that are in shared memory at once.
constexpr u32 SCALAR_SLICE = 64;
static_assert(TILE_KEYS == WARP, "a lane stands for a key");

template <u32 DIM, u32 WARP_QUERIES>
DEVICE void attend_scalars(float *out, const float *q, const float *k, const float *v, Task task,
                           Sight sight, const Segment *segments, u32 heads, u32 kv_heads, u32 head_dim, float scale,
                           u32 part) {
    constexpr u32 QUERIES = SCALAR_WARPS * WARP_QUERIES;
    constexpr u32 SLICES = DIM / SCALAR_SLICE;
    // Groups of four stay aligned, and those of eight rows lie in different banks.
    constexpr u32 QUERY_STRIDE = DIM + 4, STRIDE = SCALAR_SLICE + 4;
    __shared__ __align__(16) float queries[QUERIES * QUERY_STRIDE];
    __shared__ __align__(16) float tile[TILE_KEYS * STRIDE];
    __shared__ __align__(16) float corners[SCALAR_WARPS][WARP_QUERIES * TILE_KEYS];

    const u32 head = blockIdx.y, kv_head = u32(u64(head) * kv_heads / heads);
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u64 q_bytes = u64(heads) * head_dim * sizeof(float), kv_bytes = u64(kv_heads) * head_dim * sizeof(float);
    const float *queries_of_warp = queries + warp * WARP_QUERIES * QUERY_STRIDE;
    float *corner = corners[warp];

    // Puts a tile of a matrix where all can read it.
    const auto load = [&](const float *matrix, const KeyTiles &keys, u32 slice) {
        const float *from = matrix + (u64(keys.row()) * kv_heads + kv_head) * head_dim;
        copy_tile<float, TILE_KEYS, SCALAR_SLICE, SCALAR_THREADS>(tile, STRIDE, from, kv_bytes, keys.count(),
                                                                  slice * SCALAR_SLICE, head_dim);
        __syncthreads();
    };

    const u32 first = part * QUERIES;
    if (first >= task.query_count) return;
    const u64 q_at = (u64(task.query_start + first) * heads + head) * head_dim;
    copy_tile<float, QUERIES, DIM, SCALAR_THREADS>(queries, QUERY_STRIDE, q + q_at, q_bytes,
                                                   task.query_count - first, 0, head_dim);

    float max[WARP_QUERIES], sum[WARP_QUERIES], result[SLICES][WARP_QUERIES][2];
#pragma unroll
    for (u32 i = 0; i < WARP_QUERIES; i++) {
        max[i] = -infinity();
        sum[i] = 0.0f;
#pragma unroll
        for (u32 slice = 0; slice < SLICES; slice++) result[slice][i][0] = result[slice][i][1] = 0.0f;
    }

    const u32 last = min(task.query_count, first + QUERIES) - 1;
    for (KeyTiles keys(segments, task, sight, first, last); keys.more(); keys.next()) {
        float scores[WARP_QUERIES] = {};
#pragma unroll 1
        for (u32 slice = 0; slice < SLICES; slice++) {
            load(k, keys, slice);
#pragma unroll 2
            for (u32 d = 0; d < SCALAR_SLICE; d += 4) {
                float key[4];
                four_at(tile + lane * STRIDE + d, key);
#pragma unroll
                for (u32 i = 0; i < WARP_QUERIES; i++) {
                    float query[4];
                    four_at(queries_of_warp + i * QUERY_STRIDE + slice * SCALAR_SLICE + d, query);
#pragma unroll
                    for (u32 j = 0; j < 4; j++) scores[i] = fmaf(query[j], key[j], scores[i]);
                }
            }
            __syncthreads();
        }

        float shrink[WARP_QUERIES];
#pragma unroll
        for (u32 i = 0; i < WARP_QUERIES; i++) {
            const u32 query = first + warp * WARP_QUERIES + i;
            const u32 unseen = keys.count_before(sight.begin(task, query)), seen = keys.count_before(sight.end(task, query));
            const float score = lane >= unseen && lane < seen ? scores[i] * scale : -infinity();
            float tile_max = fmaxf(max[i], score);
#pragma unroll
            for (u32 far = WARP / 2; far > 0; far /= 2) {
                tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffffu, tile_max, far));
            }
            const float base = finite_max(tile_max);
            const float weight = expf(score - base);
            float tile_sum = weight;
#pragma unroll
            for (u32 far = WARP / 2; far > 0; far /= 2) {
                tile_sum += __shfl_xor_sync(0xffffffffu, tile_sum, far);
            }
            shrink[i] = expf(max[i] - base);
            max[i] = tile_max;
            sum[i] = sum[i] * shrink[i] + tile_sum;
            corner[i * TILE_KEYS + lane] = weight;
        }
        __syncwarp();

#pragma unroll
        for (u32 slice = 0; slice < SLICES; slice++) {
            load(v, keys, slice);
            float(&to)[WARP_QUERIES][2] = result[slice];
#pragma unroll
            for (u32 i = 0; i < WARP_QUERIES; i++) {
                to[i][0] *= shrink[i];
                to[i][1] *= shrink[i];
            }
#pragma unroll 1
            for (u32 key = 0; key < TILE_KEYS; key += 4) {
                float2 values[4];
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    values[j] = *reinterpret_cast<const float2 *>(tile + (key + j) * STRIDE + 2 * lane);
                }
#pragma unroll
                for (u32 i = 0; i < WARP_QUERIES; i++) {
                    float weights[4];
                    four_at(corner + i * TILE_KEYS + key, weights);
#pragma unroll
                    for (u32 j = 0; j < 4; j++) {
                        to[i][0] = fmaf(weights[j], values[j].x, to[i][0]);
                        to[i][1] = fmaf(weights[j], values[j].y, to[i][1]);
                    }
                }
            }
            __syncthreads();
        }
    }

#pragma unroll
    for (u32 i = 0; i < WARP_QUERIES; i++) {
        const u32 query = warp * WARP_QUERIES + i;
        if (first + query >= task.query_count) continue;
        const float inverse = inverse_of_sum(sum[i]);
        float *to = out + q_at + u64(query) * heads * head_dim;
#pragma unroll
        for (u32 slice = 0; slice < SLICES; slice++) {
            const u32 column = slice * SCALAR_SLICE + 2 * lane;
            // Heads are whole pairs.
            if (column < head_dim) {
                to[column] = result[slice][i][0] * inverse;
                to[column + 1] = result[slice][i][1] * inverse;
            }
        }
    }
}

// Two blocks at once are enough to ask for: more would have the longest heads' registers spilled.
#define ATTEND_SCALARS_KERNEL(DIM, PARTS) \
    KERNEL_FUNCTION __launch_bounds__(SCALAR_THREADS, 2) attend_f32_##DIM(ATTEND_PARAMETERS(f32)) { \
        attend_scalars<DIM, 16 / PARTS>(ATTEND_ARGUMENTS(blockIdx.x / PARTS), blockIdx.x % PARTS); \
    }
ATTEND_SCALARS_KERNEL(64, 2)
ATTEND_SCALARS_KERNEL(128, 2)
ATTEND_SCALARS_KERNEL(256, 2)
ATTEND_SCALARS_KERNEL(512, 4)

SALIENCE_KERNELS(f32)

// Over the heads in their order.
KERNEL_FUNCTION salience_heads(float *out, const float *sums, u32 all, u32 heads) {
    const u32 key = blockIdx.x * blockDim.x + threadIdx.x;
    if (key >= all) return;
    float sum = 0.0f;
    for (u32 head = 0; head < heads; head++) sum += sums[u64(head) * all + key];
    out[key] = sum;
}
