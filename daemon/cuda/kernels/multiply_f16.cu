#include "multiply_half.cuh"

FOR_EACH_FORMAT(MULTIPLY_KERNEL, f16)
