#include "attention_half.cuh"

ATTEND_KERNELS(bf16)
