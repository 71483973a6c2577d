// matvec and gated_matvec: a block for each multiprocessor, which takes its share of every matrix's tiles.
#pragma once
#include "activate.cuh"
#include "input_rows.cuh"

namespace ef::cuda {

struct MatvecJob {
  Layout layout;
  Plan plan[3];
  Input in;
  int rows = 0, count = 0;
  Product product[3];
  float* add_to = nullptr;
  float add_scale = 1.f;
  ActivationParams activation;  ///< of pairs
};

// This block's share of what is cut into tiles of plan.tile_rows rows.
__device__ inline MatrixShare share_of(const Weights& w, const Plan& plan, int64_t n) {
  MatrixShare m;
  m.w = w, m.plan = plan, m.n = int(n);
  // The first blocks have one more than the others.
  const unsigned tiles = unsigned((int(n) + plan.tile_rows - 1) / plan.tile_rows);
  const unsigned each = tiles / gridDim.x, more = tiles % gridDim.x;
  m.tiles = int(each + (blockIdx.x < more ? 1 : 0));
  m.first_row = int(blockIdx.x * each + min(blockIdx.x, more)) * plan.tile_rows;
  return m;
}

// The block's part of the job; sink as for run().
template <class M, bool kPairs, class Sink>
__device__ void matvec_block(const MatvecJob& job, uint8_t* memory, Sink sink) {
  let_later_start();
  MatrixShare* matrices = reinterpret_cast<MatrixShare*>(memory);
  for (int i = int(threadIdx.x); i < job.count; i += int(blockDim.x))
    matrices[i] = share_of(job.product[i].w, job.plan[i], job.product[i].n);
  __syncthreads();
  Ring<kPairs> ring(job.layout, memory, matrices, job.count);
  ring.fill();
  const int cols = job.layout.cols;
  NormWeights norm(job.in, cols);
  for (int i = 0; i < job.count; ++i) {
    const MatrixShare& m = matrices[i];
    if (m.w.bias) ask_for(m.w.bias + m.first_row, 4 * int64_t(m.tiles) * m.plan.tile_rows);
  }

  wait_for_earlier();
  const auto row_of = [&](int r) { return job.in.x + r * job.in.stride; };
  Fours<M::kRows> first;
  first.load(row_of, job.rows, 4 * int(threadIdx.x), cols);
  const typename M::Rows x(memory + job.layout.rows_at, cols);
  float* partial = reinterpret_cast<float*>(memory + job.layout.partial_at);
  prepare_rows(x, norm, first, row_of, job.rows, partial, blockIdx.x == 0 && job.in.normed);
  __syncthreads();
  run<M>(
      ring, [&](int) { return x; }, partial,
      [&](int i, int row, int r, float sum) {
        if (r >= job.rows) return;
        const MatrixShare& m = matrices[i];
        if (m.w.bias) sum += __ldg(m.w.bias + row);
        sink(i, row, int64_t(r) * m.n + row, sum);
      });
}

template <template <int> class M, int R>
__global__ void __launch_bounds__(kLanes* kMostWarps, R <= 2 ? 2 : 1) matvec_kernel(const MatvecJob job) {
  EF_DYNAMIC_SHARED(uint8_t, memory);
  matvec_block<M<R>, false>(job, memory, [&](int i, int, int64_t at, float sum) {
    if (job.add_to)
      job.add_to[at] += job.add_scale * sum;
    else
      job.product[i].out[at] = sum;
  });
}

template <template <int> class M, int R>
__global__ void __launch_bounds__(kLanes* kMostWarps, R <= 2 ? 2 : 1) gated_kernel(const MatvecJob job) {
  EF_DYNAMIC_SHARED(uint8_t, memory);
  float gate = 0;
  matvec_block<M<R>, true>(job, memory, [&](int i, int, int64_t at, float sum) {
    const ActivationParams& a = job.activation;
    if (i == 0)
      gate = sum;
    else
      job.product[0].out[at] = activate(a.kind, a.alpha, a.limit, gate, sum);
  });
}

cudaError_t matvec_integers(const MatvecJob&, const Shape&, cudaStream_t);
cudaError_t matvec_floats(const MatvecJob&, const Shape&, cudaStream_t);
cudaError_t gated_integers(const MatvecJob&, const Shape&, cudaStream_t);
cudaError_t gated_floats(const MatvecJob&, const Shape&, cudaStream_t);
/// Shared memory behind the rows of activations that the choice for so many rows takes.
size_t route_space(const RouteParams&, int rows);
cudaError_t route_floats(const MatvecJob&, const RouteParams&, unsigned* arrived, const Shape&, cudaStream_t);

}  // namespace ef::cuda
