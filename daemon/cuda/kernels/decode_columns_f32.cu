#include "decode_columns.cuh"

DECODE_COLUMNS_KERNEL(f32)
