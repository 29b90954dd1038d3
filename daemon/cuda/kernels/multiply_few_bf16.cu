#include "multiply_few.cuh"

FOR_EACH_FORMAT(MULTIPLY_FEW_KERNEL, bf16)
