// The kernels between the multiplications, for one type of number.

#pragma once

#include "elementwise.cuh"
#include "norm.cuh"

#define ROW_KERNELS(T) \
    KERNEL_FUNCTION rms_norm_##T(number::T *out, const float *x, const u8 *weight, u32 weight_format, u32, u32 width, \
                                 float epsilon) { \
        rms_norm(out, x, weight, weight_format, width, epsilon); \
    } \
    KERNEL_FUNCTION rope_##T(number::T *x, const float *table, const u32 *positions, u32 rows, u32 heads, u32 half) { \
        rope(x, table, positions, rows, heads, half); \
    } \
    KERNEL_FUNCTION silu_multiply_##T(number::T *gate, const number::T *up, u64 count) { \
        silu_multiply(gate, up, count); \
    } \
    KERNEL_FUNCTION add_##T(float *x, const number::T *y, u64 count) { add(x, y, count); } \
    KERNEL_FUNCTION convert_##T(number::T *out, const float *x, u64 count) { convert(out, x, count); }
