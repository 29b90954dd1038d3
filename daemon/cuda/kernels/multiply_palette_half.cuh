// The kernels that multiply by palette-coded weights in 16-bit numbers.

#pragma once

#include "multiply_few.cuh"
#include "multiply_half.cuh"
#include "palette_weights.cuh"

#define MULTIPLY_PALETTE_KERNELS(T) \
    KERNEL_FUNCTION __launch_bounds__(Large::THREADS, 2) multiply_palette_##T PALETTE_PARAMETERS(T) { \
        multiply<Large>(Output<number::T>{out, out_is_f32 != 0, out_stride, beta}, x, \
                        PALETTE_OF(blockIdx.y * Large::OUTPUTS), rows, outputs, width); \
    } \
    KERNEL_FUNCTION __launch_bounds__(Small::THREADS) multiply_small_palette_##T PALETTE_PARAMETERS(T) { \
        multiply<Small>(Output<number::T>{out, out_is_f32 != 0, out_stride, beta}, x, \
                        PALETTE_OF(blockIdx.y * Small::OUTPUTS), rows, outputs, width); \
    } \
    KERNEL_FUNCTION multiply_few_palette_##T PALETTE_PARAMETERS(T) { \
        multiply_few(Output<number::T>{out, out_is_f32 != 0, out_stride, beta}, x, PALETTE_OF(first_of_few()), rows, \
                     outputs, width); \
    }
