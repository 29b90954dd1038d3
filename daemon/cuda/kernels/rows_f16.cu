#include "rows.cuh"

ROW_KERNELS(f16)

KERNEL_FUNCTION saturate_f16(number::f16 *x, u32 width, u32 stride) { saturate(x, width, stride); }
