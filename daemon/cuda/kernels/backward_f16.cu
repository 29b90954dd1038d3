#include "backward.cuh"

BACKWARD_KERNELS(f16)
