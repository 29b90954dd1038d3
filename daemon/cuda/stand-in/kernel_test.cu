// Kernels that try what `cuda_on_cpu.h` and `blocks.h` promise.

#include "blocks.h"
#include "test.h"

#include <vector>

namespace {

using namespace nvcuda;

constexpr unsigned THREADS = 128;

template <class Body> void launch(const char *kernel, uint3 grid, uint3 block, size_t dynamic_shared, Body body) {
    stand_in::run({kernel, grid, block, dynamic_shared, body});
}

// ---------------------------------------------------------------------------------------------- barriers

// Each thread adds what its neighbour wrote, round after round: one barrier left out and the sums differ.
__global__ void pass_around(unsigned *out) {
    __shared__ unsigned values[2][THREADS];
    unsigned i = threadIdx.x;
    values[0][i] = i;
    for (unsigned round = 0; round < 50; round++) {
        __syncthreads();
        values[(round + 1) & 1][i] = values[round & 1][(i + 1) % THREADS] * 3 + round;
    }
    out[blockIdx.x * blockDim.x + i] = values[0][i];
}

void barrier() {
    std::vector<unsigned> out(7 * THREADS), expected(THREADS);
    launch("pass_around", {7, 1, 1}, {THREADS, 1, 1}, 0, [&] { pass_around(out.data()); });
    for (unsigned i = 0; i < THREADS; i++) expected[i] = i;
    for (unsigned round = 0; round < 50; round++) {
        auto before = expected;
        for (unsigned i = 0; i < THREADS; i++) expected[i] = before[(i + 1) % THREADS] * 3 + round;
    }
    for (unsigned i = 0; i < out.size(); i++) CHECK(out[i] == expected[i % THREADS]);
}

__global__ void coordinates(unsigned *out) {
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] += block * 1000 + thread;
}

void every_thread_once() {
    std::vector<unsigned> out(24 * 30, 7);
    launch("coordinates", {2, 3, 4}, {5, 3, 2}, 0, [&] { coordinates(out.data()); });
    for (unsigned i = 0; i < out.size(); i++) CHECK(out[i] == 7 + i / 30 * 1000 + i % 30);
}

// ---------------------------------------------------------------------------------------------- warps

__global__ void shuffles(double *sums, unsigned *from_third, unsigned *down, unsigned *up) {
    unsigned i = threadIdx.x;
    double sum = i;
    for (int bits = 16; bits > 0; bits /= 2) sum += __shfl_xor_sync(0xffffffff, sum, bits);
    sums[i] = sum;
    from_third[i] = __shfl_sync(0xffffffff, i, 3);
    down[i] = __shfl_down_sync(0xffffffff, i, 4);
    up[i] = __shfl_up_sync(0xffffffff, i, 4);
}

void shuffle() {
    std::vector<double> sums(THREADS);
    std::vector<unsigned> third(THREADS), down(THREADS), up(THREADS);
    launch("shuffles", {1, 1, 1}, {THREADS, 1, 1}, 0,
           [&] { shuffles(sums.data(), third.data(), down.data(), up.data()); });
    for (unsigned i = 0; i < THREADS; i++) {
        unsigned lane = i % 32, warp = i - lane;
        CHECK(sums[i] == 32.0 * warp + 31 * 16);
        CHECK(third[i] == warp + 3);
        CHECK(down[i] == (lane + 4 < 32 ? i + 4 : i));
        CHECK(up[i] == (lane >= 4 ? i - 4 : i));
    }
}

// ---------------------------------------------------------------------------------------------- matrices

template <class T>
__global__ void multiply(float *out, float *out_columns, const T *a, const T *a_columns, const T *b_columns,
                         unsigned inner) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> left;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::col_major> left_columns;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum, sum_columns;
    wmma::fill_fragment(sum, 0.0f);
    wmma::load_matrix_sync(sum_columns, out_columns, 16, wmma::mem_col_major);
    for (unsigned k = 0; k < inner; k += 16) {
        wmma::load_matrix_sync(left, a + k, inner);
        wmma::load_matrix_sync(left_columns, a_columns + k * 16, 16);
        wmma::load_matrix_sync(right, b_columns + k, inner);
        wmma::mma_sync(sum, left, right, sum);
        wmma::mma_sync(sum_columns, left_columns, right, sum_columns);
    }
    wmma::store_matrix_sync(out, sum, 16, wmma::mem_row_major);
    wmma::store_matrix_sync(out_columns, sum_columns, 16, wmma::mem_col_major);
}

template <class T> void matrix_of() {
    constexpr unsigned INNER = 48;
    // A matrix wants more alignment than a vector's memory may have.
    alignas(32) static T a[16 * INNER], a_columns[16 * INNER], b_columns[16 * INNER];
    alignas(32) static float out[256], out_columns[256];
    for (unsigned i = 0; i < 16; i++)
        for (unsigned k = 0; k < INNER; k++) {
            a[i * INNER + k] = a_columns[k * 16 + i] = T(float(int(i * 7 + k * 5) % 23 - 11) / 8);
            b_columns[i * INNER + k] = T(float(int(i * 3 + k * 11) % 19 - 9) / 4);
        }
    for (float &value : out_columns) value = 100;
    launch("multiply", {1, 1, 1}, {32, 1, 1}, 0,
           [&] { multiply<T>(out, out_columns, a, a_columns, b_columns, INNER); });
    for (unsigned i = 0; i < 16; i++)
        for (unsigned j = 0; j < 16; j++) {
            float expected = 0;
            for (unsigned k = 0; k < INNER; k++) expected += float(a[i * INNER + k]) * float(b_columns[j * INNER + k]);
            CHECK(out[i * 16 + j] == expected);
            CHECK(out_columns[j * 16 + i] == expected + 100);
        }
}

void matrix() {
    matrix_of<__half>();
    matrix_of<__nv_bfloat16>();
}

void misaligned_matrix() {
    alignas(32) static __half values[16 * 16 + 1];
    launch("load_misaligned", {1, 1, 1}, {32, 1, 1}, 0, [] {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fragment;
        wmma::load_matrix_sync(fragment, values + 1, 16);
    });
}

// ---------------------------------------------------------------------------------------------- shared memory

__global__ void look_around(unsigned *clean) {
    __shared__ unsigned statics[THREADS];
    __shared__ unsigned char odd[3];
    DYNAMIC_SHARED(bytes);
    auto *dynamics = reinterpret_cast<unsigned *>(bytes);
    unsigned i = threadIdx.x;
    bool as_new = statics[i] == 0xffffffff && dynamics[i] == 0xffffffff && odd[i % 3] == 0xff;
    clean[blockIdx.x * THREADS + i] = as_new;
    __syncthreads();
    statics[i] = dynamics[i] = i;
    odd[i % 3] = 1;
}

// What one block leaves in shared memory the next one doesn't find.
void shared_memory() {
    std::vector<unsigned> clean(20 * THREADS);
    for (int launches = 0; launches < 2; launches++) {
        launch("look_around", {20, 1, 1}, {THREADS, 1, 1}, THREADS * sizeof(unsigned),
               [&] { look_around(clean.data()); });
        for (unsigned value : clean) CHECK(value == 1);
    }
}

void shared_memory_overrun() {
    launch("overrun", {1, 1, 1}, {1, 1, 1}, 256, [] {
        DYNAMIC_SHARED(bytes);
        for (unsigned i = 0; i <= 256; i++) bytes[i] = 1;
    });
}

// ---------------------------------------------------------------------------------------------- what stops a program

void leaves_before_barrier() {
    launch("leaves_early", {3, 1, 1}, {64, 1, 1}, 0, [] {
        if (threadIdx.x == 40) return;
        __syncthreads();
    });
}

void leaves_before_shuffle() {
    launch("leaves_warp", {1, 1, 1}, {64, 1, 1}, 0, [] {
        if (threadIdx.x == 5) return;
        __shfl_xor_sync(0xffffffff, 1, 1);
    });
}

void different_barriers() {
    launch("two_barriers", {1, 1, 1}, {64, 1, 1}, 0, [] {
        if (threadIdx.x < 16) __syncwarp();
        else __syncthreads();
    });
}

void partial_mask() {
    launch("half_a_warp", {1, 1, 1}, {32, 1, 1}, 0, [] { __shfl_xor_sync(0xffff, 1, 1); });
}

// ---------------------------------------------------------------------------------------------- numbers

void permuted_bytes() {
    CHECK(__byte_perm(0x33221100, 0x77665544, 0x5140) == 0x55114400);
    CHECK(__byte_perm(0x33221100, 0x77665544, 0xf7362) == 0x77336622);
    CHECK(__byte_perm(0x807f0180, 0, 0xba98) == 0xff0000ff);
    CHECK(__brev(0x80000005) == 0xa0000001);
}

void half_precision() {
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        unsigned exponent = bits >> 10 & 31, mantissa = bits & 1023;
        float value = __half2float(__ushort_as_half(bits));
        if (exponent == 31 && mantissa != 0) {
            CHECK(std::isnan(value) && std::isnan(__half2float(__float2half_rn(value))));
            continue;
        }
        float expected = exponent == 31 ? INFINITY
                         : exponent     ? std::ldexp(1024.0f + mantissa, int(exponent) - 25)
                                        : std::ldexp(float(mantissa), -24);
        CHECK(value == (bits & 0x8000 ? -expected : expected));
        CHECK(__half_as_ushort(__float2half_rn(value)) == bits);
        // Half way to the next one goes to the even one of the two, and a little less or more to the nearer.
        if (bits >= 0x7bff) continue;
        float next = __half2float(__ushort_as_half(bits + 1)), middle = (value + next) / 2;
        CHECK(__half_as_ushort(__float2half_rn(middle)) == bits + (bits & 1));
        CHECK(__half_as_ushort(__float2half_rn(std::nextafter(middle, 0.0f))) == bits);
        CHECK(__half_as_ushort(__float2half_rn(std::nextafter(middle, 1e9f))) == bits + 1);
    }
    CHECK(__half_as_ushort(__float2half_rn(65519.0f)) == 0x7bff);
    CHECK(__half_as_ushort(__float2half_rn(65520.0f)) == 0x7c00);
    CHECK(__half_as_ushort(__float2half_rn(-1e30f)) == 0xfc00);
}

void bfloat_precision() {
    for (unsigned bits = 0; bits < 0x7f80; bits++) {
        float value = __bfloat162float(__ushort_as_bfloat16(bits));
        CHECK(__float_as_uint(value) == bits << 16);
        CHECK(__bfloat16_as_ushort(__float2bfloat16_rn(value)) == bits);
        CHECK(__bfloat16_as_ushort(__float2bfloat16_rn(-value)) == (bits | 0x8000));
        float middle = __uint_as_float(bits << 16 | 0x8000);
        CHECK(__bfloat16_as_ushort(__float2bfloat16_rn(middle)) == bits + (bits & 1));
        CHECK(__bfloat16_as_ushort(__float2bfloat16_rn(__uint_as_float(bits << 16 | 0x7fff))) == bits);
        CHECK(__bfloat16_as_ushort(__float2bfloat16_rn(__uint_as_float(bits << 16 | 0x8001))) == bits + 1);
    }
    CHECK(std::isnan(__bfloat162float(__float2bfloat16_rn(NAN))));
}

const Test TESTS[] = {
    TEST(barrier),
    TEST(every_thread_once),
    TEST(shuffle),
    TEST(matrix),
    TEST(misaligned_matrix),
    TEST(shared_memory),
    TEST(shared_memory_overrun),
    TEST(leaves_before_barrier),
    TEST(leaves_before_shuffle),
    TEST(different_barriers),
    TEST(partial_mask),
    TEST(permuted_bytes),
    TEST(half_precision),
    TEST(bfloat_precision),
};

} // namespace

int main(int count, char **arguments) { return run_test(TESTS, count, arguments); }
