#include "launch.cuh"
#include "route.cuh"

namespace ef::cuda {
namespace {

__global__ void route_kernel(const RouteParams p) {
  EF_DYNAMIC_SHARED(float, memory);
  let_later_start();
  wait_for_earlier();
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x)
    routing::route_row(p, row, p.logits + row * p.experts, memory, int(threadIdx.x));
}

}  // namespace

uint64_t route_shared_bytes(const RouteParams& p) {
  return (2 * uint64_t(p.experts) + uint64_t(p.groups) + uint64_t(p.top_k)) * sizeof(float) + uint64_t(p.experts) +
         uint64_t(p.groups);
}

cudaError_t route(const RouteParams& p, cudaStream_t stream) {
  if (p.rows <= 0) return cudaSuccess;
  constexpr int64_t kMostBlocks = 1 << 20;
  return launch(route_kernel, {unsigned(min(p.rows, kMostBlocks)), 32, size_t(route_shared_bytes(p)), Start::kEarly},
                stream, p);
}

}  // namespace ef::cuda
