// Operations that take each number of a matrix for itself. Grids have a thread a number.

#pragma once

#include "number.cuh"

DEVICE u64 thread_of_grid() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }

// A number of a vector that lies as it is stored: `f32`, `f16` or `bf16`.
DEVICE float stored_number(const u8 *numbers, u32 format, u32 i) {
    if (format == 0) return reinterpret_cast<const float *>(numbers)[i];
    const u32 half = reinterpret_cast<const u16 *>(numbers)[i];
    return format == 1 ? from_bits<__half>(half) : from_bits<__nv_bfloat16>(half);
}

// Residual rows become numbers that are computed in.
template <class T> DEVICE void convert(T *out, const float *x, u64 count) {
    const u64 i = thread_of_grid();
    if (i < count) out[i] = narrow<T>(x[i]);
}

// And the other way, for what is computed in `f32` alone.
template <class T> DEVICE void to_f32(float *out, const T *x, u64 count) {
    const u64 i = thread_of_grid();
    if (i < count) out[i] = widen(x[i]);
}

// What cuBLAS rounded to infinity becomes the largest number, as in products of our own kernels. Rows begin `stride` numbers
// apart; a block has a part of one.
template <class T> DEVICE void saturate(T *x, u32 width, u32 stride) {
    const u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    T *number = x + u64(blockIdx.x) * stride + column;
    if (column < width) *number = narrow<T>(widen(*number));
}

template <class T> DEVICE void add(float *x, const T *y, u64 count) {
    const u64 i = thread_of_grid();
    if (i < count) x[i] += widen(y[i]);
}

// `silu(gate) · up`, in the gate's place.
template <class T> DEVICE void silu_multiply(T *gate, const T *up, u64 count) {
    const u64 i = thread_of_grid();
    if (i < count) {
        const float value = widen(gate[i]);
        gate[i] = narrow<T>(value / (1.0f + expf(-value)) * widen(up[i]));
    }
}

// `gelu(gate) · up`, in the gate's place; GELU by the hyperbolic tangent.
template <class T> DEVICE void gelu_multiply(T *gate, const T *up, u64 count) {
    const u64 i = thread_of_grid();
    if (i >= count) return;
    const float x = widen(gate[i]);
    // √(2 / π), doubled: a half of 1 + tanh(a) is the sigmoid of 2a.
    const float twice = 1.5957691f * (x + 0.044715f * x * x * x);
    gate[i] = narrow<T>(x / (1.0f + expf(-twice)) * widen(up[i]));
}

// `1 / (1 + e^-x)`.
DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// GELU by the error function.
DEVICE float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

// The functions by their numbers: hyperbolic tangent, sigmoid, the square of what is positive, and GELU.
template <class T> DEVICE void element_function(T *x, u32 function, u64 count) {
    const u64 i = thread_of_grid();
    if (i >= count) return;
    const float value = widen(x[i]), positive = fmaxf(value, 0.0f);
    x[i] = narrow<T>(function == 0   ? tanhf(value)
                     : function == 1 ? sigmoid(value)
                     : function == 2 ? positive * positive
                                     : gelu(value));
}

// Products and their bias, as numbers that are computed in; in `f32` they may lie in one place.
template <class T>
DEVICE void add_bias(T *out, const float *x, const u8 *bias, u32 bias_format, u32 width, u64 count) {
    const u64 i = thread_of_grid();
    if (i < count) out[i] = narrow<T>(x[i] + stored_number(bias, bias_format, u32(i % width)));
}

// By which angles pairs are turned, and which numbers of a head are pairs.
struct Angles {
    // A row is `half` cosines, then as many sines.
    const float *table;
    // Pairs of a head; the rest of it stays as it is.
    u32 half;
    u32 head_dim;
    // How far apart the first numbers of two pairs are, and the two of a pair.
    u32 step, distance;
    // 1, or -1 to turn back.
    float direction;
};

// A matrix whose rows of heads are turned, each by its position.
template <class T> struct Turned {
    T *x;
    const u32 *positions;
    u32 rows;
    u32 heads;

    DEVICE u64 pairs(u32 half) const { return u64(rows) * heads * half; }

    DEVICE void turn(u64 pair, const Angles &angles) const {
        const u32 half = angles.half, i = u32(pair % half);
        const u64 head = pair / half;
        const float *row = angles.table + u64(positions[head / heads]) * 2 * half;
        const float cos = row[i], sin = row[half + i] * angles.direction;
        T *low = x + head * angles.head_dim + angles.step * i;
        T *high = low + angles.distance;
        const float a = widen(*low), b = widen(*high);
        *low = narrow<T>(a * cos - b * sin);
        *high = narrow<T>(b * cos + a * sin);
    }
};

// Queries and keys at once.
template <class T> DEVICE void rope(const Turned<T> &q, const Turned<T> &k, const Angles &angles) {
    const u64 pair = thread_of_grid(), of_queries = q.pairs(angles.half);
    if (pair < of_queries) {
        q.turn(pair, angles);
    } else if (pair - of_queries < k.pairs(angles.half)) {
        k.turn(pair - of_queries, angles);
    }
}

// Vectors that lie as they are stored, of one width.
struct StoredVectors {
    static constexpr u32 MAX = 8;
    const u8 *numbers[MAX];
    u32 formats[MAX];
};

// They become rows of `f32`; the grid's second dimension has a place for each.
DEVICE void stack_vectors(float *out, const StoredVectors &vectors, u32 width) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (i < width) out[u64(row) * width + i] = stored_number(vectors.numbers[row], vectors.formats[row], i);
}
