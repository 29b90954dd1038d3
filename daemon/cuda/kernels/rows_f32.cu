#include "rows.cuh"

ROW_KERNELS(f32)

KERNEL_FUNCTION add_rms_norm_f32(float *out, const float *x, const u8 *weight, u32 weight_format, u32, u32 width,
                                 float epsilon) {
    add_rms_norm(out, x, weight, weight_format, width, epsilon);
}

KERNEL_FUNCTION scale_f32(float *out, const float *x, float factor, u64 count) {
    const u64 i = thread_of_grid();
    if (i < count) out[i] = x[i] * factor;
}

// Rows times the only number of one of two weights: of the second where `chosen` is 1. The grid's first dimension has the
// rows.
KERNEL_FUNCTION scale_rows_f32(float *x, const u32 *chosen, const u8 *first, u32 first_format, const u8 *second,
                               u32 second_format, u32 width) {
    const u32 column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const float factor =
        chosen[blockIdx.x] != 0 ? stored_number(second, second_format, 0) : stored_number(first, first_format, 0);
    x[u64(blockIdx.x) * width + column] *= factor;
}

KERNEL_FUNCTION stack_vectors_f32(float *out, const __grid_constant__ StoredVectors vectors, u32 width) {
    stack_vectors(out, vectors, width);
}

// Rows of keys and of values go to their places in a cache, both at once: a thread takes a word of each.
KERNEL_FUNCTION put_rows(u32 *k_places, u32 *v_places, const u32 *k, const u32 *v, u64 words) {
    const u64 i = thread_of_grid();
    if (i >= words) return;
    k_places[i] = k[i];
    v_places[i] = v[i];
}

// Rows that stay become the first ones of their matrix, in their order. Matrices lie `matrix_words` apart; a layer's two,
// keys and values, keep the same rows. A thread takes a word of every row: none that it has yet to read stands before one
// that it has written, since rows rise.
KERNEL_FUNCTION keep_rows(u32 *matrices, const u32 *kept, u64 matrix_words, u32 row_words, u32 count) {
    const u32 word = blockIdx.x * blockDim.x + threadIdx.x;
    if (word >= row_words) return;
    u32 *column = matrices + blockIdx.y * matrix_words + word;
    kept += blockIdx.y / 2 * count;
    // So many reads wait for memory at once.
    constexpr u32 TOGETHER = 8;
    for (u32 first = 0; first < count; first += TOGETHER) {
        u32 words[TOGETHER];
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) {
            if (first + i < count) words[i] = column[u64(kept[first + i]) * row_words];
        }
#pragma unroll
        for (u32 i = 0; i < TOGETHER; i++) {
            if (first + i < count) column[u64(first + i) * row_words] = words[i];
        }
    }
}
