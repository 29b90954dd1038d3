#include "rwkv7.cuh"

RWKV7_KERNELS(f16)
