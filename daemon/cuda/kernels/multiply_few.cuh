// The multiplication of up to eight rows, which waits for the weights and for nothing else: a warp reads whole rows of
// them, decodes each weight once, and multiplies it with every row of `x`. Rows of both are whole times 16 bytes, and
// aligned so; other shapes are left to the tile kernels.

#pragma once

#include "weights.cuh"

constexpr u32 FEW_ROWS = 8;
// Rows of weights of a warp: what is read of `x` serves all of them.
constexpr u32 FEW_OUTPUTS = 2;
constexpr u32 FEW_SUMS = FEW_OUTPUTS * FEW_ROWS;
static_assert(2 * FEW_SUMS == WARP, "two lanes end up with a sum");

// Lanes add up what they have of each sum, half of the sums each at every turn: in the end two lanes share one. Each turn
// has a number of its own of the compiler's: sums that are found by a number that is only known later lie in slow memory.
template <u32 COUNT> DEVICE void share_sums(float (&sums)[FEW_SUMS], u32 lane) {
    constexpr u32 FAR = 2 * COUNT;
    const bool upper = (lane & FAR) != 0;
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
        const float kept = upper ? sums[i + COUNT] : sums[i];
        const float given = upper ? sums[i] : sums[i + COUNT];
        sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, FAR);
    }
    if constexpr (COUNT > 1) share_sums<COUNT / 2>(sums, lane);
}

// The first row of weights of a warp.
DEVICE u32 first_of_few() { return (blockIdx.x * blockDim.x + threadIdx.x) / WARP * FEW_OUTPUTS; }

template <class T, class Weights>
DEVICE void multiply_few(Output<T> out, const T *x, const Weights &weights, u32 rows, u32 outputs, u32 width) {
    using Numbers = format::Dense<T>;
    constexpr u32 RUN = Weights::RUN;
    // What a lane takes at a time: whole runs of both.
    constexpr u32 PIECE = RUN > Numbers::RUN ? RUN : Numbers::RUN;

    const u32 lane = threadIdx.x % WARP, first = first_of_few();
    float sums[FEW_SUMS] = {};
#pragma unroll 1
    for (u32 at = lane * PIECE; at < width; at += WARP * PIECE) {
        typename Weights::Run runs[FEW_OUTPUTS][PIECE / RUN];
#pragma unroll
        for (u32 o = 0; o < FEW_OUTPUTS; o++) {
            // The last row stands for those beyond it, whose sums nobody takes.
            const u32 row = min(first + o, outputs - 1);
#pragma unroll
            for (u32 i = 0; i < PIECE / RUN; i++) runs[o][i] = weights.fetch(row, at + i * RUN);
        }
        float decoded[FEW_OUTPUTS][PIECE / RUN][RUN];
#pragma unroll
        for (u32 o = 0; o < FEW_OUTPUTS; o++) {
#pragma unroll
            for (u32 i = 0; i < PIECE / RUN; i++) weights.decode(runs[o][i], decoded[o][i]);
        }
#pragma unroll
        for (u32 r = 0; r < FEW_ROWS; r++) {
            if (r >= rows) continue;
            const u8 *row = reinterpret_cast<const u8 *>(x + u64(r) * width);
#pragma unroll
            for (u32 i = 0; i < PIECE; i += Numbers::RUN) {
                float values[Numbers::RUN];
                Numbers::decode(Numbers::fetch(row, at + i), values);
#pragma unroll
                for (u32 o = 0; o < FEW_OUTPUTS; o++) {
#pragma unroll
                    for (u32 j = 0; j < Numbers::RUN; j++) {
                        const u32 k = i + j;
                        const float weight = decoded[o][k / RUN][k % RUN];
                        sums[o * FEW_ROWS + r] = fmaf(values[j], weight, sums[o * FEW_ROWS + r]);
                    }
                }
            }
        }
    }
    weights.template add_rest<T, FEW_OUTPUTS, FEW_ROWS>(sums, x, rows, first, lane);
    share_sums<FEW_SUMS / 2>(sums, lane);
    const float sum = sums[0] + __shfl_xor_sync(0xffffffffu, sums[0], 1);
    const u32 output = first + lane / 2 / FEW_ROWS, row = lane / 2 % FEW_ROWS;
    if (lane % 2 == 0 && row < rows && output < outputs) out.put(row, output, sum);
}

#define MULTIPLY_FEW_KERNEL(T, F) \
    KERNEL_FUNCTION multiply_few_##T##_##F(void *out, u32 out_is_f32, const number::T *x, const u8 *weights, u32 rows, \
                                           u32 outputs, u32 width, u32 out_stride, float beta) { \
        multiply_few(Output<number::T>{out, out_is_f32 != 0, out_stride, beta}, x, \
                     Stored<format::F>{weights, outputs, width}, rows, outputs, width); \
    }
