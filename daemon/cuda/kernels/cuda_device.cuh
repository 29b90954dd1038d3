// What every kernel file starts from: CUDA's own headers or, on a machine without a card, what stands in for them.
//
// Kernels are compiled without contraction (`--fmad=false`): a product and a sum are rounded one by one, as the engine
// does on the CPU, and a fused one is asked for by name.

#pragma once

#ifdef SLUICE_ON_CPU
#include "../stand-in/cuda_on_cpu.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#endif

#define DEVICE __device__ __forceinline__
#define KERNEL_FUNCTION extern "C" __global__ void

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 WARP = 32;

DEVICE float infinity() { return __uint_as_float(0x7f800000u); }
