// The numbers that are computed in: `f32`, `f16` and `bf16`. Kernels hold them as stored and reckon in `f32`.

#pragma once

#include "cuda_device.cuh"

namespace number {
using f32 = float;
using f16 = __half;
using bf16 = __nv_bfloat16;
} // namespace number

// A 16-bit number as it lies in memory. CUDA's own function for it is not there for every card.
template <class T> DEVICE u32 bits(const T &value) { return reinterpret_cast<const u16 &>(value); }

DEVICE float widen(float value) { return value; }
DEVICE float widen(__half value) { return __half2float(value); }
DEVICE float widen(__nv_bfloat16 value) { return __uint_as_float(bits(value) << 16); }

// What an `f32` becomes. In half precision what is too large stays the largest number, since one infinity would spoil
// every row that it is multiplied into; no number stays none.
template <class T> DEVICE T narrow(float value);

template <> DEVICE float narrow<float>(float value) { return value; }

template <> DEVICE __half narrow<__half>(float value) {
    constexpr float LARGEST = 65504.0f;
    float limit = copysignf(LARGEST, value);
    return __float2half_rn(fabsf(value) > LARGEST ? limit : value);
}

template <> DEVICE __nv_bfloat16 narrow<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }

// Two numbers of 16 bits in a word, as they lie in memory.
template <class T> DEVICE u32 pair(float low, float high) {
    return bits(narrow<T>(low)) | bits(narrow<T>(high)) << 16;
}

// The number that a half of a word holds.
template <class T> DEVICE float from_bits(u32 half);
template <> DEVICE float from_bits<__half>(u32 half) { return __half2float(__ushort_as_half(u16(half))); }
template <> DEVICE float from_bits<__nv_bfloat16>(u32 half) { return __uint_as_float(half << 16); }
