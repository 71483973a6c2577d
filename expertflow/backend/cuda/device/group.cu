#include "group_small.cuh"

namespace ef::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

// A block places the assignments of one expert, after counting those of the experts before it. Warps have consecutive
// parts of the ids, so that the order is ascending.
__global__ void __launch_bounds__(kThreads) order_kernel(const GroupParams p) {
  __shared__ int32_t mine_of[kWarps], before_of[kWarps];
  let_later_start();
  wait_for_earlier();
  const int expert = int(blockIdx.x), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t part = (p.assignments + kThreads - 1) / kThreads * 32;
  const int64_t first = warp * part, end = min(p.assignments, first + part);
  const auto id_at = [&](int64_t i) { return i + lane < end ? p.ids[i + lane] : -1; };

  int32_t mine = 0, before = 0;
  for (int64_t i = first; i < end; i += 32) {
    const int32_t id = id_at(i);
    mine += __popc(__ballot_sync(0xffffffffu, id == expert));
    before += __popc(__ballot_sync(0xffffffffu, id >= 0 && id < expert));
  }
  if (lane == 0) mine_of[warp] = mine, before_of[warp] = before;
  __syncthreads();
  int32_t place = 0, total = 0;
  for (int i = 0; i < kWarps; ++i) {
    place += before_of[i] + (i < warp ? mine_of[i] : 0);
    total += mine_of[i];
  }
  if (threadIdx.x == 0) p.counts[expert] = total;
  if (mine == 0) return;
  for (int64_t i = first; i < end; i += 32) {
    const bool here = id_at(i) == expert;
    const uint32_t all = __ballot_sync(0xffffffffu, here);
    if (here) p.order[place + __popc(all & ((1u << lane) - 1))] = int32_t(i + lane);
    place += __popc(all);
  }
}

__global__ void __launch_bounds__(kThreads) tiles_kernel(const GroupParams p) {
  let_later_start();
  wait_for_earlier();
  make_tiles<kThreads>(
      p, [&](int expert) { return p.counts[expert]; }, [](int, int32_t) {});
}

__global__ void __launch_bounds__(kMostSmall) group_small_kernel(const GroupParams p) {
  let_later_start();
  group_small(p);
}

}  // namespace

int64_t most_tiles(int64_t assignments, int experts, int tile_rows) {
  // Every expert that has rows may have one tile that is not full.
  const int64_t used = min(assignments, int64_t(experts));
  return (assignments + used * (tile_rows - 1)) / tile_rows;
}

cudaError_t group(const GroupParams& p, cudaStream_t stream) {
  Shape shape;
  shape.block = kThreads, shape.start = Start::kEarly;
  if (is_small(p)) {
    shape.grid = 1, shape.block = kMostSmall;
    return launch(group_small_kernel, shape, stream, p);
  }
  shape.grid = unsigned(p.experts);
  if (const cudaError_t error = launch(order_kernel, shape, stream, p); error != cudaSuccess) return error;
  shape.grid = 1;
  return launch(tiles_kernel, shape, stream, p);
}

}  // namespace ef::cuda
