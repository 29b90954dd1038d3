#include "attention_half.cuh"

ATTEND_KERNELS(f16)
