#include "multiply_scalars.cuh"

#define MULTIPLY_SCALARS_KERNEL(T, F) \
    KERNEL_FUNCTION __launch_bounds__(ScalarLarge::THREADS) \
        multiply_##T##_##F(void *out, u32, const number::T *x, const u8 *weights, u32 rows, u32 outputs, u32 width, \
                           u32 out_stride, float beta) { \
        multiply_scalars<ScalarLarge>(static_cast<float *>(out), x, Stored<format::F>{weights, outputs, width}, rows, \
                                      outputs, width, out_stride, beta); \
    } \
    KERNEL_FUNCTION __launch_bounds__(ScalarSmall::THREADS) \
        multiply_small_##T##_##F(void *out, u32, const number::T *x, const u8 *weights, u32 rows, u32 outputs, \
                                 u32 width, u32 out_stride, float beta) { \
        multiply_scalars<ScalarSmall>(static_cast<float *>(out), x, Stored<format::F>{weights, outputs, width}, rows, \
                                      outputs, width, out_stride, beta); \
    }

FOR_EACH_FORMAT(MULTIPLY_SCALARS_KERNEL, f32)
