// Multiplications of a mixture's rows: one launch for all experts. The grid's third dimension has a place for each task,
// which is some rows of one expert, as many as a tile has at most.

#pragma once

#include "multiply_few.cuh"

// Some rows of one expert.
struct ExpertTask {
    const u8 *weights;
    u32 first_row, rows;

    template <class Format> DEVICE Stored<Format> stored(u32 outputs, u32 width) const {
        return {weights, outputs, width};
    }

    // Where the task's rows begin among those of all.
    template <class Number> DEVICE Number *rows_of(Number *all, u32 stride) const { return all + u64(first_row) * stride; }

    template <class T> DEVICE Output<T> output(T *out, u32 outputs) const {
        return {rows_of(out, outputs), sizeof(T) == sizeof(float), outputs, 0.0f};
    }
};

#define GROUPED_FEW_KERNEL(T, F) \
    KERNEL_FUNCTION grouped_few_##T##_##F(number::T *out, const number::T *x, const ExpertTask *tasks, u32 outputs, \
                                          u32 width) { \
        const ExpertTask task = tasks[blockIdx.z]; \
        multiply_few(task.output(out, outputs), task.rows_of(x, width), task.stored<format::F>(outputs, width), task.rows, \
                     outputs, width); \
    }
