// routed_matvec: gate, up and what is between them for 32 neurons of an expert, and down. For few rows a block has one
// assignment, and down sums a row's experts; for more, experts' rows share a tile and a kernel of its own sums.
#pragma once
#include "activate.cuh"
#include "input_rows.cuh"

namespace ef::cuda {

constexpr int kNeurons = 32;     // of a block: a group of the rounded activations
constexpr int kRoutedWarps = 8;  // of a block, at most

struct RoutedJob {
  RoutedParams p;
  Layout layout;
  Plan plan[2];                 ///< gate and up, or down
  bool round_middle = false;    ///< for a product in integers
  uint8_t* middle = nullptr;    ///< [assignments]: rows of ffn numbers, floats or as QuantizedRows has them
  int columns = 0;              ///< of down's outputs, that a block takes
  const Tile* tiles = nullptr;  ///< with the expert as group; null: a tile for every assignment
  const int32_t* tile_count = nullptr;
  const int32_t* order = nullptr;
  float* down = nullptr;  ///< [assignments, hidden], with tiles
};

__host__ __device__ inline int64_t middle_bytes(int64_t ffn, bool rounded) {
  return rounded ? QuantizedRows::row_bytes(int(ffn)) : 4 * ffn;
}

// What a block's tile is. Written by the kernel before the one before, which had ended when that one let this one
// start: may be read while it still runs, but not from this multiprocessor's cache.
struct RoutedTile {
  __device__ RoutedTile(const RoutedJob& job, int at) : order(job.order) {
    if (!job.tiles) {
      first = at, rows = 1;
      expert = __ldcg(job.p.ids + at);
      return;
    }
    if (at >= __ldcg(job.tile_count)) return;
    const int32_t* tile = reinterpret_cast<const int32_t*>(job.tiles + at);
    expert = __ldcg(tile), first = __ldcg(tile + 1), rows = __ldcg(tile + 2);
  }
  __device__ bool exists(const RoutedJob& job) const { return rows > 0 && unsigned(expert) < unsigned(job.p.experts); }
  __device__ int64_t assignment(int r) const { return order ? __ldcg(order + first + r) : first; }
  const int32_t* order;
  int expert = -1, first = 0, rows = 0;
};
static_assert(sizeof(Tile) == 3 * sizeof(int32_t));

__device__ inline MatrixShare rows_of(const Weights& w, const Plan& plan, int64_t n, int first, int count) {
  MatrixShare m;
  m.w = w, m.plan = plan;
  m.n = int(min(n, int64_t(first) + count)), m.first_row = first;
  m.tiles = max(0, (m.n - first + plan.tile_rows - 1) / plan.tile_rows);
  return m;
}

// Neurons [32 y, 32 y + 32) of the tile x.
template <template <int> class M, int R>
__global__ void __launch_bounds__(kLanes* kRoutedWarps, R <= 2 ? 4 : 2) routed_up_kernel(const RoutedJob job) {
  EF_DYNAMIC_SHARED(uint8_t, memory);
  const RoutedParams& p = job.p;
  // Entries that some block will need; which, the choices say.
  if (blockIdx.y == 0) ask_for(p.table, int64_t(sizeof(ExpertEntry)) * p.experts);
  wait_for_earlier();
  let_later_start();  // not before: down reads choices when it starts
  const RoutedTile tile(job, int(blockIdx.x));
  const int first = int(blockIdx.y) * kNeurons, cols = job.layout.cols;
  const auto row_of = [&](int r) { return p.x + tile.assignment(r) / p.top_k * cols; };
  Fours<R> first_four;  // comes while the choice does
  first_four.load(row_of, tile.rows, 4 * int(threadIdx.x), cols);
  if (!tile.exists(job)) return;
  MatrixShare* matrices = reinterpret_cast<MatrixShare*>(memory);
  if (threadIdx.x < 2) {
    const ExpertEntry& expert = p.table[tile.expert];
    matrices[threadIdx.x] =
        rows_of(threadIdx.x == 0 ? expert.gate : expert.up, job.plan[threadIdx.x], p.ffn, first, kNeurons);
  }
  __syncthreads();
  Ring<true> ring(job.layout, memory, matrices, 2);
  ring.fill();
  for (int i = 0; i < 2; ++i)
    if (matrices[i].w.bias) ask_for(matrices[i].w.bias + first, 4 * kNeurons);

  const typename M<R>::Rows x(memory + job.layout.rows_at, cols);
  float* partial = reinterpret_cast<float*>(memory + job.layout.partial_at);
  float* neurons = reinterpret_cast<float*>(memory + job.layout.extra_at);  // [R, kNeurons]
  const Input plain;
  NormWeights no_norm(plain, cols);
  prepare_rows(x, no_norm, first_four, row_of, tile.rows, partial, false);
  __syncthreads();
  float gate = 0;
  run<M<R>>(
      ring, [&](int) { return x; }, partial,
      [&](int i, int row, int r, float sum) {
        if (r >= tile.rows) return;
        const float* bias = matrices[i].w.bias;
        if (bias) sum += __ldg(bias + row);
        if (i == 0)
          gate = sum;
        else
          neurons[r * kNeurons + row - first] =
              activate(p.activation.kind, p.activation.alpha, p.activation.limit, gate, sum);
      });
  __syncthreads();

  // Eight lanes to a row: four numbers each.
  const int of_row = int(threadIdx.x) % 8, step = int(blockDim.x) / 8;
  for (int from = 0; from < R; from += step) {
    const int r = from + int(threadIdx.x) / 8, i = first + 4 * of_row,
              left = int(min(p.ffn, int64_t(first) + kNeurons));
    float v[4] = {};
    uint8_t* to = job.middle;
    if (r < tile.rows) {
      to += tile.assignment(r) * middle_bytes(p.ffn, job.round_middle);
      for (int j = 0; j < 4; ++j) v[j] = i + j < left ? neurons[r * kNeurons + 4 * of_row + j] : 0.f;
    }
    if (job.round_middle) {
      place(QuantizedRows(to, int(p.ffn)), 0, i, r < tile.rows ? left : 0, v);
    } else if (r < tile.rows) {
      for (int j = 0; j < 4; ++j)
        if (i + j < left) reinterpret_cast<float*>(to)[i + j] = v[j];
    }
  }
}

// Row r of x from the middle row `from`, by one warp; several loads are under way at once.
constexpr int kLoads = 4;
__device__ inline void copy_row(const QuantizedRows& x, int r, const uint8_t* from, int, int lane) {
  constexpr int kStep = 16 * kLanes;
  for (int first = 16 * lane; first < x.stride; first += kLoads * kStep) {
    uint4 v[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j)
      if (first + j * kStep < x.stride) v[j] = *reinterpret_cast<const uint4*>(from + first + j * kStep);
#pragma unroll
    for (int j = 0; j < kLoads; ++j)
      if (first + j * kStep < x.stride) *reinterpret_cast<uint4*>(x.memory + r * x.stride + first + j * kStep) = v[j];
  }
}
__device__ inline void copy_row(const FloatRows& x, int r, const uint8_t* from, int n, int lane) {
  constexpr int kStep = 4 * kLanes;
  for (int first = 4 * lane; first < n; first += kLoads * kStep) {
    float v[kLoads][4];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) load_four(reinterpret_cast<const float*>(from), first + j * kStep, n, v[j]);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) place(x, r, first + j * kStep, n, v[j]);
  }
}
// Rows r < rows from from_of(r), by the block.
template <class Rows, class FromOf>
__device__ void copy_rows(const Rows& x, int rows, FromOf from_of, int n) {
  const int lane = int(threadIdx.x) % kLanes;
  for (int r = int(threadIdx.x) / kLanes; r < rows; r += int(blockDim.x) / kLanes) copy_row(x, r, from_of(r), n, lane);
}

// Columns [columns y, columns (y + 1)) of row x: all its experts, and their sum.
template <template <int> class M>
__global__ void __launch_bounds__(kLanes* kRoutedWarps, 4) routed_down_kernel(const RoutedJob job) {
  EF_DYNAMIC_SHARED(uint8_t, memory);
  const RoutedParams& p = job.p;
  let_later_start();
  MatrixShare* matrices = reinterpret_cast<MatrixShare*>(memory);
  const int64_t row = blockIdx.x;
  const int first = int(blockIdx.y) * job.columns, cols = job.layout.cols, threads = int(blockDim.x);
  float* products = reinterpret_cast<float*>(memory + job.layout.extra_at);  // [top_k, columns]
  float* weights = products + p.top_k * job.columns;
  for (int k = int(threadIdx.x); k < p.top_k; k += threads) {
    const int id = __ldcg(p.ids + row * p.top_k + k);  // as in RoutedTile
    const bool exists = unsigned(id) < unsigned(p.experts);
    weights[k] = exists ? __ldcg(p.weights + row * p.top_k + k) : 0.f;
    matrices[k] = rows_of(exists ? p.table[id].down : Weights{}, job.plan[0], p.hidden, first, job.columns);
  }
  __syncthreads();
  Ring<false> ring(job.layout, memory, matrices, p.top_k);
  ring.fill();

  wait_for_earlier();
  const int column = first + int(threadIdx.x);
  const bool sums = int(threadIdx.x) < job.columns && column < p.hidden;
  float* const sum_at = (p.add_to ? p.add_to : p.out) + row * p.hidden + column;
  const float before = p.add_to && sums ? *sum_at : 0.f;
  using Rows = typename M<1>::Rows;
  const Rows x(memory + job.layout.rows_at, cols);
  const int64_t stride = middle_bytes(cols, job.round_middle);
  copy_rows(
      x, p.top_k, [&](int k) { return job.middle + (row * p.top_k + k) * stride; }, cols);
  __syncthreads();
  const auto x_of = [&](int k) {
    Rows of_rank = x;
    of_rank.memory += k * x.stride;
    return of_rank;
  };
  run<M<1>>(ring, x_of, reinterpret_cast<float*>(memory + job.layout.partial_at), [&](int k, int at, int, float sum) {
    const Weights& w = matrices[k].w;
    products[k * job.columns + at - first] = !w.data ? 0.f : w.bias ? sum + __ldg(w.bias + at) : sum;
  });
  __syncthreads();
  if (!sums) return;
  float sum = 0;
#pragma unroll 8
  for (int k = 0; k < p.top_k; ++k) sum += weights[k] * products[k * job.columns + int(threadIdx.x)];
  *sum_at = p.add_to ? before + p.add_scale * sum : sum;
}

// Columns [columns y, columns (y + 1)) of the tile x's assignments.
template <template <int> class M, int R>
__global__ void __launch_bounds__(kLanes* kRoutedWarps, R <= 2 ? 4 : 2) routed_down_tiles_kernel(const RoutedJob job) {
  EF_DYNAMIC_SHARED(uint8_t, memory);
  const RoutedParams& p = job.p;
  let_later_start();
  const RoutedTile tile(job, int(blockIdx.x));
  if (!tile.exists(job)) {
    wait_for_earlier();
    return;
  }
  MatrixShare* matrices = reinterpret_cast<MatrixShare*>(memory);
  const int first = int(blockIdx.y) * job.columns, cols = job.layout.cols;
  if (threadIdx.x == 0) matrices[0] = rows_of(p.table[tile.expert].down, job.plan[0], p.hidden, first, job.columns);
  __syncthreads();
  Ring<false> ring(job.layout, memory, matrices, 1);
  ring.fill();
  if (matrices[0].w.bias) ask_for(matrices[0].w.bias + first, 4 * int64_t(job.columns));

  wait_for_earlier();
  const typename M<R>::Rows x(memory + job.layout.rows_at, cols);
  const int64_t stride = middle_bytes(cols, job.round_middle);
  copy_rows(
      x, tile.rows, [&](int r) { return job.middle + tile.assignment(r) * stride; }, cols);
  __syncthreads();
  run<M<R>>(
      ring, [&](int) { return x; }, reinterpret_cast<float*>(memory + job.layout.partial_at),
      [&](int, int at, int r, float sum) {
        if (r >= tile.rows) return;
        const float* bias = matrices[0].w.bias;
        job.down[tile.assignment(r) * p.hidden + at] = bias ? sum + __ldg(bias + at) : sum;
      });
}

/// rows: of activations that a tile has at most.
cudaError_t routed_up_integers(const RoutedJob&, int rows, const Shape&, cudaStream_t);
cudaError_t routed_up_floats(const RoutedJob&, int rows, const Shape&, cudaStream_t);
cudaError_t routed_down_integers(const RoutedJob&, int rows, const Shape&, cudaStream_t);
cudaError_t routed_down_floats(const RoutedJob&, int rows, const Shape&, cudaStream_t);

}  // namespace ef::cuda
