// The same on the matrix units.

#pragma once

#include "grouped.cuh"
#include "multiply_half.cuh"

#define GROUPED_KERNEL(T, F) \
    KERNEL_FUNCTION __launch_bounds__(Small::THREADS) \
        grouped_##T##_##F(number::T *out, const number::T *x, const ExpertTask *tasks, u32 outputs, u32 width) { \
        const ExpertTask task = tasks[blockIdx.z]; \
        multiply<Small>(task.output(out, outputs), task.rows_of(x, width), task.stored<format::F>(outputs, width), \
                        task.rows, outputs, width); \
    }
