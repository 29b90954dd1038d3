#include "widen.cuh"

WIDEN_KERNELS(bf16)
