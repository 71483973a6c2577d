// The launchers of routed_matvec.
#include "carve.cuh"
#include "group.cuh"
#include "routed_kernel.cuh"
#include "single.cuh"

namespace ef::cuda {
namespace {

// Up to here, each assignment reads its expert's weights by itself: few are chosen twice.
constexpr int64_t kMostSingleRows = 4;

struct Scratch {
  GroupParams group;
  uint8_t* middle = nullptr;
  float* down = nullptr;
};

bool in_tiles(const RoutedParams& p) { return p.rows > kMostSingleRows; }

// Rows of a tile: about what an expert has, so that few of them stay empty and few experts have two tiles.
int rows_of_tile(const RoutedParams& p) {
  if (!in_tiles(p)) return 1;
  const int64_t assignments = p.rows * p.top_k;
  return 2 * assignments <= 3 * p.experts ? 2 : assignments <= 3 * p.experts ? 4 : 8;
}

Scratch carve_scratch(Carve& carve, const RoutedParams& p) {
  Scratch s;
  const int64_t assignments = p.rows * p.top_k;
  s.middle = carve.take<uint8_t>(assignments * middle_bytes(p.ffn, in_integers(p.meet, p.down_format)));
  if (!in_tiles(p)) return s;
  s.group.ids = p.ids, s.group.assignments = assignments;
  s.group.experts = p.experts, s.group.tile_rows = rows_of_tile(p);
  s.group.counts = carve.take<int32_t>(p.experts);
  s.group.order = carve.take<int32_t>(assignments);
  s.group.tiles = carve.take<Tile>(most_tiles(assignments, p.experts, s.group.tile_rows));
  s.group.totals = carve.take<int32_t>(2);
  s.down = carve.take<float>(assignments * p.hidden);
  return s;
}

unsigned blocks_over(int64_t n, int64_t of_block) { return unsigned((n + of_block - 1) / of_block); }

cudaError_t up(const RoutedParams& p, RoutedJob& job, int rows, unsigned tiles, cudaStream_t stream) {
  Work work;
  work.integers = in_integers(p.meet, p.gate_format) && in_integers(p.meet, p.up_format);
  work.rows = work.x_rows = rows, work.cols = p.hidden;
  work.count = 2, work.format[0] = p.gate_format, work.format[1] = p.up_format;
  work.share[0] = work.share[1] = kNeurons, work.pairs = true;
  work.most_warps = kRoutedWarps;
  work.extra_bytes = sizeof(float) * uint64_t(rows) * kNeurons;
  Cut c;
  if (!cut(work, c)) return cudaErrorInvalidValue;
  job.layout = c.layout, job.plan[0] = c.plan[0], job.plan[1] = c.plan[1];
  const dim3 grid(tiles, blocks_over(p.ffn, kNeurons));
  const Shape shape{grid, unsigned(kLanes * c.warps), c.shared_bytes, Start::kEarly};
  return (work.integers ? routed_up_integers : routed_up_floats)(job, rows, shape, stream);
}

cudaError_t down(const RoutedParams& p, RoutedJob& job, int rows, unsigned tiles, cudaStream_t stream) {
  Work work;
  work.integers = job.round_middle;
  work.rows = rows, work.cols = p.ffn;
  work.format[0] = p.down_format;
  work.most_warps = kRoutedWarps;
  if (job.tiles) {
    constexpr int kColumns = 64;
    job.columns = kColumns, work.x_rows = rows;
  } else {
    // Two blocks for each multiprocessor, in steps that tiles fill.
    constexpr int64_t kStep = 8, kMostColumns = 32;
    const int64_t columns = p.hidden * p.rows / (2 * int64_t(max(1, device_traits().multiprocessors)));
    job.columns = int(min(max(columns + kStep / 2, kStep) / kStep * kStep, kMostColumns));
    work.x_rows = work.repeats = p.top_k;
    work.extra_bytes = sizeof(float) * uint64_t(p.top_k) * uint64_t(job.columns + 1);
  }
  work.share[0] = job.columns;
  Cut c;
  if (!cut(work, c)) return cudaErrorInvalidValue;
  job.layout = c.layout, job.plan[0] = c.plan[0];
  const dim3 grid(tiles, blocks_over(p.hidden, job.columns));
  const Shape shape{grid, unsigned(kLanes * c.warps), c.shared_bytes, Start::kEarly};
  return (work.integers ? routed_down_integers : routed_down_floats)(job, rows, shape, stream);
}

}  // namespace

uint64_t routed_matvec_scratch(const RoutedParams& p) {
  Carve carve(nullptr);
  carve_scratch(carve, p);
  return carve.bytes();
}

cudaError_t routed_matvec(const RoutedParams& p, cudaStream_t stream) {
  if (p.rows <= 0) return cudaSuccess;
  const int64_t assignments = p.rows * p.top_k;
  if (assignments > INT32_MAX) return cudaErrorInvalidValue;
  Carve carve(p.scratch);
  const Scratch s = carve_scratch(carve, p);
  if (single_routed_takes(p)) return single_routed(p, reinterpret_cast<float*>(s.middle), stream);
  RoutedJob job;
  job.p = p;
  job.round_middle = in_integers(p.meet, p.down_format);
  job.middle = s.middle;
  if (!in_tiles(p)) {
    const cudaError_t error = up(p, job, 1, unsigned(assignments), stream);
    return error == cudaSuccess ? down(p, job, 1, unsigned(p.rows), stream) : error;
  }
  const int rows = s.group.tile_rows;
  const unsigned tiles = unsigned(most_tiles(assignments, p.experts, rows));
  job.tiles = s.group.tiles, job.tile_count = s.group.totals, job.order = s.group.order, job.down = s.down;
  cudaError_t error = group(s.group, stream);
  if (error == cudaSuccess) error = up(p, job, rows, tiles, stream);
  if (error == cudaSuccess) error = down(p, job, rows, tiles, stream);
  return error == cudaSuccess ? combine_routed(p, s.down, stream) : error;
}

}  // namespace ef::cuda
