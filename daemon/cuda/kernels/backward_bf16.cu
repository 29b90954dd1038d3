#include "backward.cuh"

BACKWARD_KERNELS(bf16)
