#include "attention_half.cuh"
#include "salience.cuh"

ATTEND_KERNELS(f16)
SALIENCE_KERNELS(f16)
