#include "rows.cuh"

ROW_KERNELS(bf16)
