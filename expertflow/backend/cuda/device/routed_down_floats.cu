#include "routed_kernel.cuh"

namespace ef::cuda {

cudaError_t routed_down_floats(const RoutedJob& job, int rows, const Shape& shape, cudaStream_t stream) {
  if (!job.tiles) return launch(routed_down_kernel<MeetF32>, shape, stream, job);
  const auto kernel_of = [](auto count) { return routed_down_tiles_kernel<MeetF32, decltype(count)::value>; };
  return launch_for_rows(kernel_of, rows, shape, stream, job);
}

}  // namespace ef::cuda
