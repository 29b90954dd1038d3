// The dialect of CUDA C++ that the kernels are written in, as host C++: with this header in place of CUDA's, kernel
// sources compile unchanged and run as `blocks.h` describes. What a kernel may not do on a GPU and would quietly do
// here (a partial mask, a matrix load that is not aligned) stops the program instead.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

// ---------------------------------------------------------------------------------------------- words

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// A block's threads share one system thread, and different blocks may run on different ones.
#define __shared__ static thread_local
#define DYNAMIC_SHARED(name) unsigned char *const name = ::stand_in::here().block->dynamic_shared

// ---------------------------------------------------------------------------------------------- vectors

#define VECTOR2(name, type, bytes)                                                                                     \
    struct alignas(bytes) name {                                                                                       \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    inline name make_##name(type x, type y) { return {x, y}; }
#define VECTOR4(name, type, bytes)                                                                                     \
    struct alignas(bytes) name {                                                                                       \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }

VECTOR2(char2, signed char, 2)
VECTOR2(uchar2, unsigned char, 2)
VECTOR2(short2, short, 4)
VECTOR2(ushort2, unsigned short, 4)
VECTOR2(int2, int, 8)
VECTOR2(uint2, unsigned, 8)
VECTOR2(float2, float, 8)
VECTOR2(double2, double, 16)
VECTOR2(ulonglong2, unsigned long long, 16)
VECTOR4(char4, signed char, 4)
VECTOR4(uchar4, unsigned char, 4)
VECTOR4(short4, short, 8)
VECTOR4(ushort4, unsigned short, 8)
VECTOR4(int4, int, 16)
VECTOR4(uint4, unsigned, 16)
VECTOR4(float4, float, 16)

#undef VECTOR2
#undef VECTOR4

struct uint3 {
    unsigned x, y, z;
};
using dim3 = uint3;

// ---------------------------------------------------------------------------------------------- threads

namespace stand_in {

constexpr unsigned WARP = 32;

// What a thread of a block has run up to.
enum class At { start, warp_barrier, block_barrier, end };

struct Warp {
    // What the lanes hand each other. Two sets: a lane may be one exchange ahead of another, never two.
    alignas(8) unsigned char slots[2][WARP][8];
};

struct Launch;

struct Block {
    uint3 index, dim, grid_dim;
    unsigned char *dynamic_shared;
    const Launch *launch;
    void *scheduler[5];
};

struct Thread {
    uint3 index;
    unsigned lane;
    unsigned lanes; // of its warp; fewer than WARP in a block's last one
    unsigned exchanges;
    At at;
    Block *block;
    Warp *warp;
    void *context[5];
};

extern thread_local Thread *current;

inline Thread &here() { return *current; }

// Lets the other threads run until all of them have come to this barrier.
void wait_at(At barrier);

// Says which kernel and thread did what, and ends the program.
[[noreturn]] void stop(const char *format, ...) __attribute__((format(printf, 1, 2)));

inline void check_mask(unsigned mask) {
    if (mask != 0xffffffffu) stop("a mask of %#x: the stand-in knows full warps only", mask);
}

template <class T> T exchange(unsigned mask, T value, unsigned from, unsigned width, bool in_range) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "a warp exchanges up to 8 bytes");
    if (width != WARP) stop("a shuffle of width %u: the stand-in knows full warps only", width);
    check_mask(mask);
    Thread &thread = here();
    auto &slots = thread.warp->slots[thread.exchanges++ & 1];
    std::memcpy(slots[thread.lane], &value, sizeof value);
    wait_at(At::warp_barrier);
    if (!in_range) return value;
    if (from >= thread.lanes) stop("a shuffle from lane %u of a warp of %u threads", from, thread.lanes);
    std::memcpy(&value, slots[from], sizeof value);
    return value;
}

template <class To, class From> To as(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

} // namespace stand_in

#define threadIdx (::stand_in::here().index)
#define blockIdx (::stand_in::here().block->index)
#define blockDim (::stand_in::here().block->dim)
#define gridDim (::stand_in::here().block->grid_dim)
constexpr int warpSize = stand_in::WARP;

inline void __syncthreads() { stand_in::wait_at(stand_in::At::block_barrier); }

inline void __syncwarp(unsigned mask = 0xffffffffu) {
    stand_in::check_mask(mask);
    stand_in::wait_at(stand_in::At::warp_barrier);
}

template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize) {
    return stand_in::exchange(mask, value, unsigned(lane) % stand_in::WARP, width, true);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize) {
    return stand_in::exchange(mask, value, stand_in::here().lane ^ unsigned(bits), width, true);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = warpSize) {
    unsigned from = stand_in::here().lane + by;
    return stand_in::exchange(mask, value, from, width, from < stand_in::WARP);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = warpSize) {
    unsigned lane = stand_in::here().lane;
    return stand_in::exchange(mask, value, lane - by, width, by <= lane);
}
inline int __all_sync(unsigned mask, int predicate) {
    int all = predicate != 0;
    for (int bits = 1; bits < warpSize; bits *= 2) all &= __shfl_xor_sync(mask, all, bits);
    return all;
}

// ---------------------------------------------------------------------------------------------- arithmetic

// CUDA has these beside C's, for every pair of number types.
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point<T>::value) return std::fmin(T(a), T(b));
    return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point<T>::value) return std::fmax(T(a), T(b));
    return T(a) < T(b) ? T(b) : T(a);
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return std::fmin(std::fmax(x, 0.0f), 1.0f); }

// Rounded one by one: the stand-in is compiled without fused arithmetic of the compiler's own making.
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }
inline float __double2float_rn(double x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __int2float_rn(int x) { return float(x); }
inline double __ull2double_rn(unsigned long long x) { return double(x); }
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }

inline unsigned __float_as_uint(float x) { return stand_in::as<unsigned>(x); }
inline int __float_as_int(float x) { return stand_in::as<int>(x); }
inline float __uint_as_float(unsigned x) { return stand_in::as<float>(x); }
inline float __int_as_float(int x) { return stand_in::as<float>(x); }
inline long long __double_as_longlong(double x) { return stand_in::as<long long>(x); }
inline double __longlong_as_double(long long x) { return stand_in::as<double>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (x >> i & 1) << (31 - i);
    return reversed;
}
// Four of eight bytes, by a number of four bits each; the highest of these gives the byte's own highest bit eight times.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    uint64_t both = uint64_t(high) << 32 | low;
    unsigned bytes = 0;
    for (int i = 0; i < 4; i++) {
        unsigned select = selector >> 4 * i & 15, byte = unsigned(both >> 8 * (select & 7)) & 0xff;
        if (select & 8) byte = byte & 0x80 ? 0xff : 0;
        bytes |= byte << 8 * i;
    }
    return bytes;
}
inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned((uint64_t(x) * y) >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)(((unsigned __int128)x * y) >> 64);
}

template <class T> T __ldg(const T *address) { return *address; }
template <class T> T __ldcs(const T *address) { return *address; }
template <class T> T __ldcg(const T *address) { return *address; }
[[noreturn]] inline void __trap() { stand_in::stop("__trap()"); }

// ---------------------------------------------------------------------------------------------- half precision

namespace stand_in {

// Both ways by float arithmetic rather than by cases: a compiler makes vector code of it.
inline float half_to_float(uint16_t half) {
    uint32_t magnitude = uint32_t(half & 0x7fffu) << 13;
    uint32_t bits = as<uint32_t>(as<float>(magnitude) * 0x1p112f);
    if (magnitude >= 0x7c00u << 13) bits = magnitude | 0x7f800000u;
    return as<float>(bits | uint32_t(half & 0x8000u) << 16);
}

inline uint16_t float_to_half(float x) {
    uint32_t bits = as<uint32_t>(x);
    uint32_t sign = bits & 0x80000000u;
    uint32_t magnitude = bits ^ sign;
    // Overflows to infinity what half precision can't hold, then shifts the rounding to where half's last bit is.
    float scaled = as<float>(magnitude) * 0x1p112f * 0x1p-110f;
    uint32_t exponent = magnitude & 0x7f800000u;
    if (exponent < 0x38800000u) exponent = 0x38800000u;
    uint32_t rounded = as<uint32_t>(scaled + as<float>(exponent + 0x07800000u));
    uint32_t half = ((rounded >> 13) & 0x7c00u) + (rounded & 0x0fffu);
    if (magnitude > 0x7f800000u) half = 0x7fffu; // as the GPU's NaN
    return uint16_t(half | sign >> 16);
}

inline float bfloat_to_float(uint16_t bfloat) { return as<float>(uint32_t(bfloat) << 16); }

inline uint16_t float_to_bfloat(float x) {
    uint32_t bits = as<uint32_t>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

} // namespace stand_in

struct __half {
    uint16_t bits;
    __half() = default;
    __half(float x) : bits(stand_in::float_to_half(x)) {}
    operator float() const { return stand_in::half_to_float(bits); }
};
struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) : bits(stand_in::float_to_bfloat(x)) {}
    operator float() const { return stand_in::bfloat_to_float(bits); }
};
using half = __half;
using nv_bfloat16 = __nv_bfloat16;

inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline float __half2float(__half x) { return x; }
inline __half __ushort_as_half(unsigned short bits) { return stand_in::as<__half>(bits); }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }

inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return stand_in::as<__nv_bfloat16>(bits); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }

struct alignas(4) __half2 {
    __half x, y;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
using half2 = __half2;
using nv_bfloat162 = __nv_bfloat162;

inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline float2 __half22float2(__half2 pair) { return {pair.x, pair.y}; }
inline __half __low2half(__half2 pair) { return pair.x; }
inline __half __high2half(__half2 pair) { return pair.y; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 pair) { return {pair.x, pair.y}; }

// ---------------------------------------------------------------------------------------------- matrix units

// A warp's matrix is spread over its lanes in a way that kernels may not know. Here its first lane holds all of it
// and does all the work; without a barrier, so that a `__syncwarp` that is missing around it can show.
namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int m, int n, int k, class T, class Layout = void> struct fragment {
    static_assert(m == 16 && n == 16 && k == 16, "the stand-in knows 16 x 16 x 16");
    float element[16][16];
};

template <class T> bool holds(const T *address, unsigned stride) {
    if (reinterpret_cast<uintptr_t>(address) % 32 != 0 || stride * sizeof(T) % 16 != 0)
        stand_in::stop("a matrix at %p, rows %u elements apart: it wants 32-byte and 16-byte alignment",
                       static_cast<const void *>(address), stride);
    return stand_in::here().lane == 0;
}

template <class Fragment, class T> void load(Fragment &fragment, const T *from, unsigned row, unsigned column) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) fragment.element[i][j] = float(from[i * row + j * column]);
}

template <class Use, int m, int n, int k, class T, class Layout>
void load_matrix_sync(fragment<Use, m, n, k, T, Layout> &fragment, const T *from, unsigned stride) {
    if (!holds(from, stride)) return;
    if (std::is_same<Layout, row_major>::value) load(fragment, from, stride, 1);
    else load(fragment, from, 1, stride);
}

template <int m, int n, int k>
void load_matrix_sync(fragment<accumulator, m, n, k, float> &fragment, const float *from, unsigned stride,
                      layout_t layout) {
    if (!holds(from, stride)) return;
    if (layout == mem_row_major) load(fragment, from, stride, 1);
    else load(fragment, from, 1, stride);
}

template <int m, int n, int k>
void store_matrix_sync(float *to, const fragment<accumulator, m, n, k, float> &fragment, unsigned stride,
                       layout_t layout) {
    if (!holds(to, stride)) return;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            to[layout == mem_row_major ? i * stride + j : j * stride + i] = fragment.element[i][j];
}

template <class Use, int m, int n, int k, class T, class Layout>
void fill_fragment(fragment<Use, m, n, k, T, Layout> &fragment, T value) {
    if (stand_in::here().lane != 0) return;
    for (auto &row : fragment.element)
        for (float &element : row) element = float(value);
}

template <int m, int n, int k, class T, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, m, n, k, float> &sum, const fragment<matrix_a, m, n, k, T, LayoutA> &a,
              const fragment<matrix_b, m, n, k, T, LayoutB> &b, const fragment<accumulator, m, n, k, float> &start) {
    if (stand_in::here().lane != 0) return;
    for (int i = 0; i < 16; i++) {
        float row[16];
        for (int j = 0; j < 16; j++) row[j] = start.element[i][j];
        for (int l = 0; l < 16; l++)
            for (int j = 0; j < 16; j++) row[j] += a.element[i][l] * b.element[l][j];
        for (int j = 0; j < 16; j++) sum.element[i][j] = row[j];
    }
}

} // namespace wmma
} // namespace nvcuda
