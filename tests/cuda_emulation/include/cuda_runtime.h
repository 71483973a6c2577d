// What device code finds in CUDA's header of this name, for kernels that g++ or clang++ compiles as C++.
#pragma once
#ifndef EF_CUDA_EMULATED
#error "these headers stand in for CUDA's where EF_CUDA_EMULATED is defined"
#endif
#include <math.h>

#include <cassert>
#include <cstdio>

#include <cuda_runtime_api.h>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
// Blocks run one after another, so that a block's memory can be static. The tag is how the emulator finds it.
#define __shared__ static __attribute__((abi_tag("ef_shared")))
#define __constant__ __attribute__((unused)) static
#define __builtin_assume(condition) ((void)0)

#include "tests/cuda_emulation/include/emulated/atomics.h"
#include "tests/cuda_emulation/include/emulated/block.h"
#include "tests/cuda_emulation/include/emulated/math.h"
#include "tests/cuda_emulation/include/emulated/warp.h"
