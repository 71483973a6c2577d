// The router's product, and the choice by the block that is the last to have its logits written.
#include "matvec_kernel.cuh"
#include "route.cuh"

namespace ef::cuda {
namespace {

template <int R>
__global__ void __launch_bounds__(kLanes* kMostWarps, R <= 2 ? 2 : 1)
    route_linear_kernel(const MatvecJob job, const RouteParams route, unsigned* arrived) {
  EF_DYNAMIC_SHARED(uint8_t, memory);
  __shared__ int last;
  matvec_block<MeetF32<R>, false>(job, memory, [&](int, int, int64_t at, float sum) { job.product[0].out[at] = sum; });
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(arrived, 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (threadIdx.x == 0) *arrived = 0;
  float* space = reinterpret_cast<float*>(memory + job.layout.ring_at);
  const int lane = int(threadIdx.x) % kLanes;
  for (int row = int(threadIdx.x) / kLanes; row < job.rows; row += int(blockDim.x) / kLanes) {
    float* logits = space + row * routing::row_floats(route);
    // Other blocks wrote them: not from this multiprocessor's cache.
    for (int e = lane; e < route.experts; e += kLanes) logits[e] = __ldcg(route.logits + row * route.experts + e);
    __syncwarp();
    routing::route_row(route, row, logits, logits + route.experts, lane);
  }
}

}  // namespace

size_t route_space(const RouteParams& p, int rows) {
  return sizeof(float) * size_t(rows) * size_t(routing::row_floats(p));
}

cudaError_t route_floats(const MatvecJob& job, const RouteParams& route, unsigned* arrived, const Shape& shape,
                         cudaStream_t stream) {
  const auto kernel_of = [](auto rows) { return route_linear_kernel<decltype(rows)::value>; };
  return launch_for_rows(kernel_of, job.rows, shape, stream, job, route, arrived);
}

}  // namespace ef::cuda
