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

// By one block of kCount threads: prefix sums of the experts' rows and tiles, and the tiles. note(expert, place) is told
// each expert's first place.
template <int kCount, class CountOf, class Note>
__device__ void make_tiles(const GroupParams& p, CountOf count_of, Note note) {
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
    if (expert < p.experts) note(expert, rows_to - rows);
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
  make_tiles<kThreads>(
      p, [&](int expert) { return p.counts[expert]; }, [](int, int32_t) {});
}

// All of it by one block, a thread for each of few assignments: an assignment's place is its expert's first, and those of
// the expert in earlier warps and lanes.
constexpr int kMostSmall = 128, kMostSmallExperts = 1024;
__global__ void __launch_bounds__(kMostSmall) group_small_kernel(const GroupParams p) {
  constexpr int kSmallWarps = kMostSmall / 32;
  __shared__ int32_t places[kSmallWarps][kMostSmallExperts];
  let_later_start();
  const int i = int(threadIdx.x), warp = i / 32, lane = i % 32;
  for (int e = i; e < p.experts; e += kMostSmall)
    for (int w = 0; w < kSmallWarps; ++w) places[w][e] = 0;
  wait_for_earlier();
  int32_t mine = i < int(p.assignments) ? p.ids[i] : -1;
  if (mine >= p.experts) mine = -1;
  int32_t before = 0, all = 0;
#pragma unroll 8
  for (int j = 0; j < 32; ++j) {
    const bool same = __shfl_sync(0xffffffffu, mine, j) == mine;
    all += same, before += same && j < lane;
  }
  __syncthreads();  // zeros
  if (mine >= 0 && before == 0) places[warp][mine] = all;
  __syncthreads();
  const auto count_of = [&](int e) {
    int32_t count = 0;
    for (int w = 0; w < kSmallWarps; ++w) count += places[w][e];
    return count;
  };
  make_tiles<kMostSmall>(p, count_of, [&](int e, int32_t place) {
    for (int w = 0; w < kSmallWarps; ++w) {
      const int32_t count = places[w][e];
      places[w][e] = place, place += count;
    }
  });
  __syncthreads();
  if (mine >= 0) p.order[places[warp][mine] + before] = i;
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
  if (p.assignments <= kMostSmall && p.experts <= kMostSmallExperts) {
    shape.grid = 1, shape.block = kMostSmall;
    return launch(group_small_kernel, shape, stream, p);
  }
  shape.grid = unsigned(p.experts);
  if (const cudaError_t error = launch(order_kernel, shape, stream, p); error != cudaSuccess) return error;
  shape.grid = 1;
  return launch(tiles_kernel, shape, stream, p);
}

}  // namespace ef::cuda
