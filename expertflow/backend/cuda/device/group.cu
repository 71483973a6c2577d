#include "group.cuh"

#include "launch.cuh"

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

// By one block of kCount threads: prefix sums of the experts' rows and tiles, and the tiles.
template <int kCount, class CountOf>
__device__ void make_tiles(const GroupParams& p, CountOf count_of) {
  __shared__ int32_t rows_of[kCount / 32], tiles_of[kCount / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int32_t rows_before = 0, tiles_before = 0;  // of the experts of earlier turns
  for (int base = 0; base < p.experts; base += kCount) {
    const int expert = base + int(threadIdx.x);
    const int32_t rows = expert < p.experts ? count_of(expert) : 0, tiles = (rows + p.tile_rows - 1) / p.tile_rows;
    int32_t rows_to = rows, tiles_to = tiles;  // up to and with this expert
    for (int step = 1; step < 32; step *= 2) {
      const int32_t r = __shfl_up_sync(0xffffffffu, rows_to, step), t = __shfl_up_sync(0xffffffffu, tiles_to, step);
      if (lane >= step) rows_to += r, tiles_to += t;
    }
    __syncthreads();  // the sums of the turn before have been read
    if (lane == 31) rows_of[warp] = rows_to, tiles_of[warp] = tiles_to;
    __syncthreads();
    int32_t all_rows = 0, all_tiles = 0;
    for (int i = 0; i < kCount / 32; ++i) {
      if (i == warp) rows_to += rows_before + all_rows, tiles_to += tiles_before + all_tiles;
      all_rows += rows_of[i], all_tiles += tiles_of[i];
    }
    for (int32_t i = 0; i < tiles; ++i) {
      const int32_t done = i * p.tile_rows;
      p.tiles[tiles_to - tiles + i] = {expert, rows_to - rows + done, min(p.tile_rows, rows - done)};
    }
    rows_before += all_rows, tiles_before += all_tiles;
  }
  if (threadIdx.x == 0) p.totals[0] = tiles_before, p.totals[1] = rows_before;
}

__global__ void __launch_bounds__(kThreads) tiles_kernel(const GroupParams p) {
  let_later_start();
  wait_for_earlier();
  make_tiles<kThreads>(p, [&](int expert) { return p.counts[expert]; });
}

// All of it by one block, a thread for each of few assignments, which looks at all of them.
constexpr int kMostSmallExperts = 2048;
template <int kCount>
__global__ void __launch_bounds__(kCount) group_small_kernel(const GroupParams p) {
  __shared__ int4 fours[kCount / 4];
  __shared__ int32_t counts[kMostSmallExperts];
  let_later_start();
  for (int e = threadIdx.x; e < p.experts; e += kCount) counts[e] = 0;
  wait_for_earlier();
  const int n = int(p.assignments), i = threadIdx.x;
  int32_t mine = i < n ? p.ids[i] : -1;
  if (mine >= p.experts) mine = -1;
  // Those that are no expert's come after all others.
  reinterpret_cast<int32_t*>(fours)[i] = mine < 0 ? INT32_MAX : mine;
  __syncthreads();
  if (mine >= 0) {
    atomicAdd(&counts[mine], 1);
    int32_t place = 0;
    const auto note = [&](int32_t id, int j) { place += id < mine || (id == mine && j < i); };
#pragma unroll 4
    for (int j = 0; j < n; j += 4) {
      const int4 four = fours[j / 4];
      note(four.x, j), note(four.y, j + 1), note(four.z, j + 2), note(four.w, j + 3);
    }
    p.order[place] = i;
  }
  __syncthreads();
  make_tiles<kCount>(p, [&](int expert) { return counts[expert]; });
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
  if (p.assignments <= kThreads && p.experts <= kMostSmallExperts) {
    constexpr int kFew = 128;
    const bool few = p.assignments <= kFew && p.experts <= kFew;
    shape.grid = 1, shape.block = few ? kFew : kThreads;
    return launch(few ? group_small_kernel<kFew> : group_small_kernel<kThreads>, shape, stream, p);
  }
  shape.grid = unsigned(p.experts);
  if (const cudaError_t error = launch(order_kernel, shape, stream, p); error != cudaSuccess) return error;
  shape.grid = 1;
  return launch(tiles_kernel, shape, stream, p);
}

}  // namespace ef::cuda
