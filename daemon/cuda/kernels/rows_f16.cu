#include "rows.cuh"

ROW_KERNELS(f16)

KERNEL_FUNCTION saturate_f16(number::f16 *x, u64 count) { saturate(x, count); }
