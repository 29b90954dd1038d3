#include "decode_kernels.cuh"

DECODE_KERNELS(f16)
