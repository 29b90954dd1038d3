#include "grouped.cuh"
#include "multiply_scalars.cuh"

#define GROUPED_SCALARS_KERNEL(T, F) \
    KERNEL_FUNCTION __launch_bounds__(ScalarSmall::THREADS) \
        grouped_##T##_##F(number::T *out, const number::T *x, const ExpertTask *tasks, u32 outputs, u32 width) { \
        const ExpertTask task = tasks[blockIdx.z]; \
        multiply_scalars<ScalarSmall>(task.rows_of(out, outputs), task.rows_of(x, width), \
                                      task.stored<format::F>(outputs, width), task.rows, outputs, width, outputs, 0.0f); \
    }

FOR_EACH_FORMAT(GROUPED_FEW_KERNEL, f32)
FOR_EACH_FORMAT(GROUPED_SCALARS_KERNEL, f32)
