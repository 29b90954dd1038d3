// The kernels between the multiplications, for one type of number.

#pragma once

#include "elementwise.cuh"
#include "norm.cuh"

#define ROW_KERNELS(T) \
    KERNEL_FUNCTION rms_norm_##T(number::T *out, const float *x, const u8 *weight, u32 weight_format, u32, u32 width, \
                                 float epsilon) { \
        rms_norm(out, x, weight, weight_format, width, epsilon); \
    } \
    KERNEL_FUNCTION rms_norm_heads_##T(number::T *x, const u8 *weight, u32 weight_format, u32 heads, u32 head_dim, \
                                       float epsilon) { \
        rms_norm_heads(x, weight, weight_format, heads, head_dim, epsilon); \
    } \
    KERNEL_FUNCTION layer_norm_##T(number::T *out, const float *x, const float *weight, const float *bias, u32, \
                                   u32 width, float epsilon) { \
        layer_norm(out, x, weight, bias, width, epsilon); \
    } \
    KERNEL_FUNCTION rope_##T(number::T *q, const u32 *q_positions, u32 q_rows, u32 q_heads, number::T *k, \
                             const u32 *k_positions, u32 k_rows, u32 k_heads, const float *table, u32 half, \
                             u32 head_dim, u32 step, u32 distance, float direction) { \
        rope<number::T>({q, q_positions, q_rows, q_heads}, {k, k_positions, k_rows, k_heads}, \
                        {table, half, head_dim, step, distance, direction}); \
    } \
    KERNEL_FUNCTION add_bias_##T(number::T *out, const float *x, const u8 *bias, u32 bias_format, u32 width, \
                                 u64 count) { \
        add_bias(out, x, bias, bias_format, width, count); \
    } \
    KERNEL_FUNCTION silu_multiply_##T(number::T *gate, const number::T *up, u64 count) { \
        silu_multiply(gate, up, count); \
    } \
    KERNEL_FUNCTION gelu_multiply_##T(number::T *gate, const number::T *up, u64 count) { \
        gelu_multiply(gate, up, count); \
    } \
    KERNEL_FUNCTION element_function_##T(number::T *x, u32 function, u64 count) { \
        element_function(x, function, count); \
    } \
    KERNEL_FUNCTION add_##T(float *x, const number::T *y, u64 count) { add(x, y, count); } \
    KERNEL_FUNCTION convert_##T(number::T *out, const float *x, u64 count) { convert(out, x, count); }
