// Palette-coded weights, multiplied in `f32`.

#include "multiply_few.cuh"
#include "multiply_scalars.cuh"
#include "palette_weights.cuh"

KERNEL_FUNCTION __launch_bounds__(ScalarLarge::THREADS) multiply_palette_f32 PALETTE_PARAMETERS(f32) {
    multiply_scalars<ScalarLarge>(static_cast<float *>(out), x, PALETTE_OF(blockIdx.y * ScalarLarge::OUTPUTS), rows,
                                  outputs, width, out_stride, beta);
}

KERNEL_FUNCTION __launch_bounds__(ScalarSmall::THREADS) multiply_small_palette_f32 PALETTE_PARAMETERS(f32) {
    multiply_scalars<ScalarSmall>(static_cast<float *>(out), x, PALETTE_OF(blockIdx.y * ScalarSmall::OUTPUTS), rows,
                                  outputs, width, out_stride, beta);
}

KERNEL_FUNCTION multiply_few_palette_f32 PALETTE_PARAMETERS(f32) {
    multiply_few(Output<number::f32>{out, out_is_f32 != 0, out_stride, beta}, x, PALETTE_OF(first_of_few()), rows,
                 outputs, width);
}
