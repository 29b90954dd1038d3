#include "multiply_palette_half.cuh"

MULTIPLY_PALETTE_KERNELS(bf16)
