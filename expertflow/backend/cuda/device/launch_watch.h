// Who is told of kernels as they start: profiles.
#pragma once
#include <cuda_runtime_api.h>

namespace ef::cuda {

class LaunchWatch {
 public:
  virtual cudaError_t before(cudaStream_t) = 0;
  virtual cudaError_t after(const void* kernel, cudaStream_t) = 0;

 protected:
  ~LaunchWatch() = default;
};
/// Of the kernels that this thread starts; null: nobody. Watched kernels do not start early.
LaunchWatch*& launch_watch();

/// start(), which queues the kernel, with the watch told before and after.
template <class F>
cudaError_t watched(const void* kernel, cudaStream_t stream, F&& start) {
  LaunchWatch* const watch = launch_watch();
  if (!watch) return start();
  cudaError_t error = watch->before(stream);
  if (error == cudaSuccess) error = start();
  return error == cudaSuccess ? watch->after(kernel, stream) : error;
}

}  // namespace ef::cuda
