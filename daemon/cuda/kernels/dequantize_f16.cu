#include "dequantize.cuh"

DEQUANTIZE_KERNELS(f16)
