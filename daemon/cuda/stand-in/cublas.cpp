// libcublas.so.12 on the CPU, and an older one: the multiplications that Sluice asks of cuBLAS. Types and codes are those
// of cublas_v2.h.
//
// It scribbles over its workspace in every multiplication, and refuses one that was freed.

#include "gpu.h"
#include "cuda_on_cpu.h"
#include "driver.h"

#include <cstring>
#include <vector>

#ifndef VERSION
#define VERSION 120805
#endif

namespace {

enum Code { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum Type { F32 = 0, F16 = 2, BF16 = 14 };
enum Operation { AS_IT_IS = 0, TRANSPOSED = 1 };

struct Library {
    void *stream = nullptr;
    // What it was given; its own, which nobody sees, if nothing.
    unsigned char *workspace = nullptr;
    size_t workspace_bytes = 0;
};

bool known(int type) { return type == F32 || type == F16 || type == BF16; }

float read(const void *from, int type, size_t i) {
    switch (type) {
    case F16: return static_cast<const __half *>(from)[i];
    case BF16: return static_cast<const __nv_bfloat16 *>(from)[i];
    default: return static_cast<const float *>(from)[i];
    }
}

void write(void *to, int type, size_t i, float value) {
    switch (type) {
    case F16: static_cast<__half *>(to)[i] = value; break;
    case BF16: static_cast<__nv_bfloat16 *>(to)[i] = value; break;
    default: static_cast<float *>(to)[i] = value;
    }
}

struct Matrix {
    const void *start;
    int type;
    bool transposed;
    size_t stride;

    float operator()(size_t row, size_t column) const {
        return read(start, type, transposed ? row * stride + column : column * stride + row);
    }
};

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) int

EXPORT cublasCreate_v2(void **handle) { return *handle = new Library, SUCCESS; }

EXPORT cublasDestroy_v2(void *handle) { return delete static_cast<Library *>(handle), SUCCESS; }

EXPORT cublasGetVersion_v2(void *handle, int *version) {
    if (!handle) return NOT_INITIALIZED;
    return *version = VERSION, SUCCESS;
}

EXPORT cublasSetStream_v2(void *handle, void *stream) {
    if (!handle) return NOT_INITIALIZED;
    auto *library = static_cast<Library *>(handle);
    // As the real one does: a workspace belongs to a stream.
    *library = Library{stream};
    return SUCCESS;
}

EXPORT cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes) {
    if (!handle) return NOT_INITIALIZED;
    if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0) return INVALID_VALUE;
    auto *library = static_cast<Library *>(handle);
    library->workspace = static_cast<unsigned char *>(workspace);
    library->workspace_bytes = bytes;
    return SUCCESS;
}

EXPORT cublasSetMathMode(void *handle, int) { return handle ? SUCCESS : NOT_INITIALIZED; }

EXPORT cublasGemmEx(void *handle, int operation_a, int operation_b, int m, int n, int k, const void *alpha_at,
                    const void *a, int type_a, int stride_a, const void *b, int type_b, int stride_b,
                    const void *beta_at, void *c, int type_c, int stride_c, int compute, int) {
    constexpr int COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69;
    if (!handle) return NOT_INITIALIZED;
    bool transposed_a = operation_a == TRANSPOSED, transposed_b = operation_b == TRANSPOSED;
    if (m < 0 || n < 0 || k < 0 || stride_a < (transposed_a ? k : m) || stride_b < (transposed_b ? n : k) ||
        stride_c < m)
        return INVALID_VALUE;
    if (!known(type_a) || type_a != type_b || (type_c != F32 && type_c != type_a) ||
        (compute != COMPUTE_32F && compute != COMPUTE_32F_PEDANTIC))
        return NOT_SUPPORTED;
    if (int(stand_in::setting("STAND_IN_BLAS_FAILS", 0)) == VERSION / 10000) return NOT_SUPPORTED;
    auto *library = static_cast<Library *>(handle);
    unsigned char *workspace = library->workspace;
    size_t workspace_bytes = library->workspace_bytes;
    if (workspace && !stand_in::holds(reinterpret_cast<uint64_t>(workspace), workspace_bytes)) return EXECUTION_FAILED;

    Matrix left{a, type_a, transposed_a, size_t(stride_a)}, right{b, type_b, transposed_b, size_t(stride_b)};
    float alpha = *static_cast<const float *>(alpha_at), beta = *static_cast<const float *>(beta_at);
    auto work = [=, rows = size_t(m), columns = size_t(n), inner = size_t(k)] {
        if (workspace) std::memset(workspace, 0xff, workspace_bytes);
        // Widened once, and so laid out that a column of the product is summed many rows at a time.
        std::vector<float> widened(inner * rows), sums(rows);
        for (size_t i = 0; i < rows; i++)
            for (size_t l = 0; l < inner; l++) widened[l * rows + i] = left(i, l);
        for (size_t j = 0; j < columns; j++) {
            sums.assign(rows, 0.0f);
            for (size_t l = 0; l < inner; l++) {
                float factor = right(l, j);
                for (size_t i = 0; i < rows; i++) sums[i] += widened[l * rows + i] * factor;
            }
            for (size_t i = 0; i < rows; i++) {
                size_t at = j * size_t(stride_c) + i;
                // What is not asked for is not read: it may be no number.
                float before = beta == 0.0f ? 0.0f : beta * read(c, type_c, at);
                write(c, type_c, at, alpha * sums[i] + before);
            }
        }
    };
    constexpr size_t TILE = 128;
    uint64_t tiles = uint64_t((size_t(m) + TILE - 1) / TILE) * ((size_t(n) + TILE - 1) / TILE);
    return stand_in::send(library->stream, tiles, work) ? SUCCESS : EXECUTION_FAILED;
}
