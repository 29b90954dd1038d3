#include "decode_kernels.cuh"

DECODE_KERNELS(bf16)
