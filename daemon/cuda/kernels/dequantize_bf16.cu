#include "dequantize.cuh"

DEQUANTIZE_KERNELS(bf16)
