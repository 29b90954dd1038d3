#include "attention_half.cuh"
#include "salience.cuh"

ATTEND_KERNELS(bf16)
SALIENCE_KERNELS(bf16)
