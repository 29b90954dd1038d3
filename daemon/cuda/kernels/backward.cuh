// How gradients go back through attention, gates and products with weights. Gradients are `f32`, and what the forward pass
// had are numbers of type T.

#pragma once

#include "attention_backward.cuh"
#include "elementwise.cuh"
#include "multiply_transposed.cuh"

// The inputs of `silu_multiply` become their gradients.
template <class T> DEVICE void silu_multiply_backward(T *gate, T *up, const float *d_out, u64 count) {
    const u64 i = thread_of_grid();
    if (i >= count) return;
    const float g = widen(gate[i]), u = widen(up[i]), share = sigmoid(g);
    gate[i] = narrow<T>(d_out[i] * u * (share + g * share * (1.0f - share)));
    up[i] = narrow<T>(d_out[i] * g * share);
}

#define BACKWARD_KERNELS(T) \
    KERNEL_FUNCTION silu_multiply_backward_##T(number::T *gate, number::T *up, const float *d_out, u64 count) { \
        silu_multiply_backward(gate, up, d_out, count); \
    } \
    MULTIPLY_TRANSPOSED_KERNEL(T) \
    ATTEND_BACKWARD_KERNELS(T, 64) \
    ATTEND_BACKWARD_KERNELS(T, 128) \
    ATTEND_BACKWARD_KERNELS(T, 256)
