#include "routed_kernel.cuh"

namespace ef::cuda {

cudaError_t routed_up_floats(const RoutedJob& job, int rows, const Shape& shape, cudaStream_t stream) {
  const auto kernel_of = [](auto count) { return routed_up_kernel<MeetF32, decltype(count)::value>; };
  return launch_for_rows(kernel_of, rows, shape, stream, job);
}

}  // namespace ef::cuda
