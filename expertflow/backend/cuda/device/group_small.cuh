// Groups of few assignments: see group.cuh.
#pragma once
#include "group.cuh"
#include "launch.cuh"

namespace ef::cuda {

// By one block of kCount threads: prefix sums of the experts' rows and tiles, and the tiles. note(expert, place) is
// told each expert's first place.
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

// All of it by one block, a thread for each of few assignments: an assignment's place is its expert's first, and those
// of the expert in earlier warps and lanes. Waits for earlier kernels by itself.
constexpr int kMostSmall = 128, kMostSmallExperts = 1024;
__device__ inline void group_small(const GroupParams& p) {
  constexpr int kSmallWarps = kMostSmall / 32;
  __shared__ int32_t places[kSmallWarps][kMostSmallExperts];
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

inline bool is_small(const GroupParams& p) { return p.assignments <= kMostSmall && p.experts <= kMostSmallExperts; }

}  // namespace ef::cuda
