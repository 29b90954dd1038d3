#include "rows.cuh"

ROW_KERNELS(f16)
