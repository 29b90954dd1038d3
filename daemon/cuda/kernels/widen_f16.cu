#include "widen.cuh"

WIDEN_KERNELS(f16)
