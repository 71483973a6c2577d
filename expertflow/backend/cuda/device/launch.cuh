// How kernels start. A kernel launched early may begin while the one before it on the stream still runs (compute
// capability 9.0: programmatic dependent launch): whatever it does before wait_for_earlier() must not touch what
// earlier kernels write or read, weights alone are safe. Every kernel that is ever launched early calls
// wait_for_earlier() in all its blocks, else the order of those behind it is lost.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "launch_watch.h"

namespace ef::cuda {

/// What kernels are cut for: one answer a process; where its devices differ, the least of each.
struct DeviceTraits {
  int capability = 0;  ///< 90 for compute capability 9.0
  int multiprocessors = 0;
  int shared_bytes = 0;      ///< of shared memory, that a block may ask for
  bool blocks_meet = false;  ///< blocks that are all there at once may wait for each other (Shape::together)
};
const DeviceTraits& device_traits();

/// Whether kernels can start early.
bool starts_early();

enum class Start : uint8_t { kAfter, kEarly };

struct Shape {
  dim3 grid, block;
  size_t shared = 0;  ///< bytes of dynamic shared memory
  Start start = Start::kAfter;
  bool together = false;  ///< all blocks run at once, or it is an error
};

// Asks for memory that will be read later, whatever earlier kernels do: weights alone. All threads of the block.
__device__ inline void ask_for([[maybe_unused]] const void* p, [[maybe_unused]] int64_t bytes) {
#if defined(__CUDA_ARCH__)
  constexpr int kLine = 128;
  if (!p) return;
  for (int64_t i = int64_t(threadIdx.x) * kLine; i < bytes; i += int64_t(blockDim.x) * kLine)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(p) + i));
#endif
}

#ifndef EF_CUDA_EMULATED
__device__ inline void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_later_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#define EF_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char ef_dynamic_shared[]; \
  type* name = reinterpret_cast<type*>(ef_dynamic_shared)

template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const Shape& shape, cudaStream_t stream, A&&... args) {
  constexpr size_t kWithoutAsking = 48 << 10;
  if (shape.shared > kWithoutAsking) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, int(shape.shared));
    if (error != cudaSuccess) return error;
  }
  // Kernels that are to run side by side must agree on the split of cache and shared memory: a multiprocessor empties
  // itself before it changes that.
  if (shape.start == Start::kEarly) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid, config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared, config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (shape.start == Start::kEarly && starts_early() && !launch_watch()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.together) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  }
  return watched(reinterpret_cast<const void*>(kernel), stream,
                 [&] { return cudaLaunchKernelEx(&config, kernel, P(args)...); });
}
#endif

}  // namespace ef::cuda

#ifdef EF_CUDA_EMULATED
#include "launch_emulated.h"
#endif
