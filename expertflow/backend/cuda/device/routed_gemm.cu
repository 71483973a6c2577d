// A sparse layer's experts for many rows: choices grouped by expert, gate and up of each tile, what is between them
// narrowed for the next product, down, and the sum in rank order.
#include "gemm_task.cuh"
#include "group_small.cuh"
#include "narrow_row.cuh"

namespace ef::cuda {
namespace {

struct Scratch {
  GroupParams group;
  NarrowRows x[2];  // by Narrow; without data where neither gate nor up takes it
  NarrowRows gated;
  float* wide = nullptr;     // [places, 2 ffn]: gate and up; then [assignments, hidden]: down
  uint64_t before_wide = 0;  // bytes
};

constexpr int kSmallTile = 64, kLargeTile = 128;

Scratch carve_scratch(Carve& carve, const RoutedParams& p, int tile_rows) {
  const int64_t assignments = p.rows * p.top_k;
  const bool natural = tile_rows <= kMostFewRows;
  Scratch s;
  s.group.ids = p.ids, s.group.assignments = assignments, s.group.experts = p.experts;
  s.group.tile_rows = tile_rows;
  s.group.totals = carve.take<int32_t>(2);
  s.group.counts = carve.take<int32_t>(p.experts);
  s.group.order = carve.take<int32_t>(assignments);
  s.group.tiles = carve.take<Tile>(most_tiles(assignments, p.experts, s.group.tile_rows));
  for (const Fmt format : {p.gate_format, p.up_format}) {
    NarrowRows& x = s.x[int(narrow_of(format))];
    if (x.chunks == 0) x = carve_narrow(carve, p.rows, p.hidden, natural);
  }
  s.gated = carve_narrow(carve, assignments, p.ffn, natural);
  s.before_wide = carve.bytes();
  s.wide = carve.take<float>(assignments * max(2 * p.ffn, p.hidden));
  return s;
}

constexpr int kCombineThreads = 64;

// A block sums a part of a row. A thread has kWide columns: 4 where rows are aligned.
template <int kWide>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const RoutedParams p, const float* down) {
  let_later_start();
  wait_for_earlier();
  const int64_t row = blockIdx.x;
  const int32_t* ids = p.ids + row * p.top_k;
  const float* weights = p.weights + row * p.top_k;
  for (int64_t c = kWide * (int64_t(blockIdx.y) * kCombineThreads + threadIdx.x); c < p.hidden;
       c += kWide * kCombineThreads * int64_t(gridDim.y)) {
    float* to = (p.add_to ? p.add_to : p.out) + row * p.hidden + c;
    float before[kWide] = {}, sum[kWide] = {};
    if (p.add_to) {
      if constexpr (kWide == 4) {
        const float4 four = *reinterpret_cast<const float4*>(to);
        before[0] = four.x, before[1] = four.y, before[2] = four.z, before[3] = four.w;
      } else {
        before[0] = *to;
      }
    }
#pragma unroll 8
    for (int k = 0; k < p.top_k; ++k) {
      // Read in any case, so that the loads go together; without an expert there is no place, and nothing computed.
      const bool exists = ids[k] >= 0 && ids[k] < p.experts;
      const float weight = weights[k];
      const float* from = down + (row * p.top_k + k) * p.hidden + c;
      float v[kWide];
      if constexpr (kWide == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
      } else {
        v[0] = *from;
      }
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum[i] = exists ? sum[i] + weight * v[i] : sum[i];
    }
    if (p.add_to) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum[i] = before[i] + p.add_scale * sum[i];
    }
    if constexpr (kWide == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    } else {
      *to = sum[0];
    }
  }
}

}  // namespace

cudaError_t combine_routed(const RoutedParams& p, const float* down, cudaStream_t stream) {
  const float* to = p.add_to ? p.add_to : p.out;
  const bool aligned = p.hidden % 4 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0;
  Shape shape;
  constexpr int64_t kMostParts = 64;
  const int64_t parts = (p.hidden + kCombineThreads - 1) / kCombineThreads / (aligned ? 4 : 1);
  shape.grid = dim3(unsigned(p.rows), unsigned(min(max(parts, int64_t(1)), kMostParts)));
  shape.block = kCombineThreads, shape.start = Start::kEarly;
  return launch(aligned ? combine_kernel<4> : combine_kernel<1>, shape, stream, p, down);
}

namespace {

GemmTask task_for(const RoutedParams& p, const Scratch& s) {
  GemmTask task;
  task.rows = s.group.assignments, task.tile_rows = s.group.tile_rows;
  task.tiles = s.group.tiles, task.tile_count = s.group.totals;
  task.most_tiles = most_tiles(s.group.assignments, p.experts, s.group.tile_rows);
  task.table = p.table, task.experts = p.experts;
  task.few = s.group.tile_rows <= kMostFewRows;
  return task;
}

GemmPart part_for(Matrix matrix, int64_t n, float* out, int64_t stride) {
  GemmPart part;
  part.matrix = matrix, part.n = n, part.out = out, part.out_stride = stride;
  return part;
}

// The first block groups, the others narrow a row each.
template <Narrow kKind>
__global__ void __launch_bounds__(kMostSmall)
    prepare_kernel(const GroupParams group, const PlainSource x, const int64_t cols, const NarrowRows to) {
  let_later_start();
  if (blockIdx.x == 0)
    group_small(group);
  else
    narrow_row<kKind>(x, int64_t(blockIdx.x) - 1, cols, nullptr, to);
}

// Groups and narrow rows: of few, in one launch.
cudaError_t prepare(const RoutedParams& p, const Scratch& s, cudaStream_t stream) {
  const bool brain = s.x[int(Narrow::kBrain)].chunks > 0, half = s.x[int(Narrow::kHalf)].chunks > 0;
  if (is_small(s.group) && brain != half) {
    Shape shape;
    shape.grid = unsigned(1 + p.rows), shape.block = kMostSmall, shape.start = Start::kEarly;
    return launch(brain ? prepare_kernel<Narrow::kBrain> : prepare_kernel<Narrow::kHalf>, shape, stream, s.group,
                  plain_source(p.x, p.hidden), p.hidden, s.x[int(brain ? Narrow::kBrain : Narrow::kHalf)]);
  }
  cudaError_t error = group(s.group, stream);
  for (int kind = 0; kind < 2 && error == cudaSuccess; ++kind)
    if (s.x[kind].chunks > 0) error = narrow(Narrow(kind), p.x, p.hidden, p.rows, p.hidden, s.x[kind], stream);
  return error;
}

bool in_pairs(const RoutedParams& p, const Scratch& s) {
  return p.gate_format == p.up_format && few_pairs(p.gate_format, s.group.tile_rows);
}

// gate and up of every place, side by side; one launch where they are of one format. In pairs: what is between them
// too, [places, ffn].
cudaError_t gate_and_up(const RoutedParams& p, const Scratch& s, cudaStream_t stream) {
  if (in_pairs(p, s)) {
    GemmTask task = task_for(p, s);
    set_input(task, s.x[int(narrow_of(p.gate_format))], p.hidden);
    task.x_row = s.group.order, task.x_divisor = p.top_k;
    task.pairs = true, task.activation = p.activation;
    add_part(task, part_for(Matrix::kGate, p.ffn, s.wide, p.ffn));
    return gemm_as(p.gate_format, task, stream);
  }
  const GemmPart parts[2] = {part_for(Matrix::kGate, p.ffn, s.wide, 2 * p.ffn),
                             part_for(Matrix::kUp, p.ffn, s.wide + p.ffn, 2 * p.ffn)};
  const Fmt formats[2] = {p.gate_format, p.up_format};
  const bool together = formats[0] == formats[1];
  for (int i = 0; i < (together ? 1 : 2); ++i) {
    GemmTask task = task_for(p, s);
    set_input(task, s.x[int(narrow_of(formats[i]))], p.hidden);
    task.x_row = s.group.order, task.x_divisor = p.top_k;
    add_part(task, parts[i]);
    if (together) add_part(task, parts[1]);
    if (const cudaError_t error = gemm_as(formats[i], task, stream); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t narrow_middle(const RoutedParams& p, const Scratch& s, cudaStream_t stream) {
  if (in_pairs(p, s))
    return narrow(narrow_of(p.down_format), s.wide, p.ffn, s.group.assignments, p.ffn, s.gated, stream,
                  s.group.totals + 1);
  ActivationParams act = p.activation;
  act.rows = s.group.assignments, act.width = p.ffn, act.in_stride = 2 * p.ffn;
  act.gate = s.wide, act.up = s.wide + p.ffn;
  return narrow_gated(narrow_of(p.down_format), act, s.group.totals + 1, s.gated, stream);
}

cudaError_t down(const RoutedParams& p, const Scratch& s, cudaStream_t stream) {
  GemmTask task = task_for(p, s);
  task.settled = task.few;  // that kernel lets the one between it and this start once it has seen the tiles
  set_input(task, s.gated, p.ffn);
  task.out_row = s.group.order;
  add_part(task, part_for(Matrix::kDown, p.hidden, s.wide, p.hidden));
  return gemm_as(p.down_format, task, stream);
}

}  // namespace

namespace {

// By the rows that an expert has if all are chosen alike. With few, tiles of which most experts need one: memory
// decides, and a second tile reads the weights again. Halfway between the large ones, unpacking once for 128 rows
// begins to pay.
int tile_rows_of(const RoutedParams& p) {
  const int64_t assignments = p.rows * p.top_k, used = min(assignments, int64_t(p.experts));
  const auto at_least = [&](int64_t rows_of_expert) { return assignments >= rows_of_expert * used; };
  if (!at_least(4)) return 8;
  if (!at_least(9)) return 16;
  if (!at_least(20)) return 32;
  return at_least((kSmallTile + kLargeTile) / 2) ? kLargeTile : kSmallTile;
}

}  // namespace

uint64_t routed_gemm_scratch(const RoutedParams& p) {
  Carve carve(nullptr);
  carve_scratch(carve, p, few_tile_rows(1));  // the most tiles
  return carve.bytes();
}

cudaError_t routed_gemm(const RoutedParams& p, cudaStream_t stream, RankSums* left) {
  return routed_gemm_tiled(p, tile_rows_of(p), stream, left);
}

cudaError_t rank_sums(const RankSums& sums, cudaStream_t stream) { return combine_routed(sums.p, sums.down, stream); }

cudaError_t routed_gemm_tiled(const RoutedParams& p, int tile_rows, cudaStream_t stream, RankSums* left) {
  if (p.rows <= 0) return cudaSuccess;
  const int64_t assignments = p.rows * p.top_k;
  if (assignments > INT32_MAX || !fits(p.rows, p.hidden) || !fits(assignments, p.ffn)) return cudaErrorInvalidValue;
  Carve carve(p.scratch);
  const Scratch s = carve_scratch(carve, p, tile_rows);
  cudaError_t error = prepare(p, s, stream);
  if (error == cudaSuccess) error = gate_and_up(p, s, stream);
  if (error == cudaSuccess) error = narrow_middle(p, s, stream);
  if (error == cudaSuccess) error = down(p, s, stream);
  if (error != cudaSuccess) return error;
  if (left && p.add_to && p.rows <= kMostFewRows) {
    left->p = p, left->down = s.wide, left->room = s.before_wide;
    return cudaSuccess;
  }
  return combine_routed(p, s.wide, stream);
}

}  // namespace ef::cuda
