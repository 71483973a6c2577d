// routed_matvec() of one row with weights of 16 bits: see single_row.cuh.
#include "activate.cuh"
#include "single.cuh"
#include "single_row.cuh"

namespace ef::cuda {
namespace {

using namespace single;

struct Job {
  RoutedParams p;
  int chunks = 0;
  float* middle = nullptr;
};

// A chosen expert's matrix, in shared memory; without data where there is no such expert.
struct Chosen {
  const uint8_t* data[kMostTopK];
  const float* bias[kMostTopK];
  __device__ void set(int k, const Weights& w) { data[k] = w.data, bias[k] = w.bias; }
};

__device__ inline int id_of(const RoutedParams& p, int k) {
  const int id = __ldcg(p.ids + k);
  return unsigned(id) < unsigned(p.experts) ? id : -1;
}

// Neurons of all chosen experts, one behind the other: each block has its share. A row of gate, then that of up.
template <class F>
__global__ void __launch_bounds__(kThreads, 2) single_up_kernel(const Job job) {
  using R = RowRing<3, kMostChunks>;
  EF_DYNAMIC_SHARED(uint8_t, memory);
  __shared__ Chosen gate, up;
  const RoutedParams& p = job.p;
  const int tid = int(threadIdx.x), lane = tid % kLanes, warp = tid / kLanes;
  // Entries that some block will need; which, the choices say.
  if (blockIdx.x == 0) ask_for(p.table, int64_t(sizeof(ExpertEntry)) * p.experts);
  wait_for_earlier();
  let_later_start();  // not before: down reads choices when it starts
  if (tid < p.top_k) {
    const int id = id_of(p, tid);
    gate.set(tid, id < 0 ? Weights{} : p.table[id].gate);
    up.set(tid, id < 0 ? Weights{} : p.table[id].up);
  }
  __syncthreads();
  const int ffn = int(p.ffn), neurons = p.top_k * ffn;
  const int first = int(int64_t(neurons) * blockIdx.x / gridDim.x),
            end = int(int64_t(neurons) * (blockIdx.x + 1) / gridDim.x);
  const auto row_of = [&](int turn) -> const uint8_t* {
    const int at = first + warp + turn / 2 * kWarps;
    if (at >= end) return nullptr;
    const uint8_t* data = (turn % 2 ? up : gate).data[at / ffn];
    return data ? data + int64_t(at % ffn) * p.hidden * F::kBytes : nullptr;
  };
  R ring(memory, job.chunks);
  ring.fill(row_of);
  float x[kMostChunks][8];
  hold(p.x, job.chunks, lane, x);
  for (int turn = 0, at = first + warp; at < end; turn += 2, at += kWarps) {
    float a = ring.next(F{}, turn, x, row_of), b = ring.next(F{}, turn + 1, x, row_of);
    const int k = at / ffn, n = at % ffn;
    if (lane > 0 || !gate.data[k]) continue;
    if (gate.bias[k]) a += __ldg(gate.bias[k] + n);
    if (up.bias[k]) b += __ldg(up.bias[k] + n);
    job.middle[at] = activate(p.activation.kind, p.activation.alpha, p.activation.limit, a, b);
  }
}

// A block has its share of the columns, for all chosen experts, whose products it sums in rank order. A warp has an
// expert, or one after the other.
template <class F, int kDepth, int kChunks>
__global__ void __launch_bounds__(kThreads, 2) single_down_kernel(const Job job) {
  using R = RowRing<kDepth, kChunks>;
  EF_DYNAMIC_SHARED(uint8_t, memory);
  __shared__ Chosen down;
  __shared__ float weight[kMostTopK];
  float* const products = reinterpret_cast<float*>(memory + R::kBytes);  // [top_k, columns]
  const RoutedParams& p = job.p;
  const int tid = int(threadIdx.x), lane = tid % kLanes, warp = tid / kLanes;
  let_later_start();
  // Written by the kernel before the one before, which had ended when that one let this one start.
  if (tid < p.top_k) {
    const int id = id_of(p, tid);
    down.set(tid, id < 0 ? Weights{} : p.table[id].down);
    weight[tid] = id < 0 ? 0.f : __ldcg(p.weights + tid);
  }
  __syncthreads();
  const int first = int(p.hidden * blockIdx.x / gridDim.x),
            columns = int(p.hidden * (blockIdx.x + 1) / gridDim.x) - first;
  const int64_t row_bytes = p.ffn * F::kBytes;
  const auto row_of = [&](int turn) -> const uint8_t* {
    const int k = warp + turn / columns * kWarps;
    if (k >= p.top_k || !down.data[k]) return nullptr;
    return down.data[k] + (first + turn % columns) * row_bytes;
  };
  R ring(memory, job.chunks);
  ring.fill(row_of);

  wait_for_earlier();
  const bool sums = tid < columns;
  float* const sum_at = (p.add_to ? p.add_to : p.out) + first + tid;
  const float before = p.add_to && sums ? *sum_at : 0.f;
  int turn = 0;
  for (int k = warp; k < p.top_k; k += kWarps) {
    float x[kChunks][8];
    hold(job.middle + int64_t(k) * p.ffn, job.chunks, lane, x);
    for (int c = 0; c < columns; ++c, ++turn) {
      const float sum = ring.next(F{}, turn, x, row_of);
      if (lane > 0) continue;
      const float* bias = down.bias[k];
      products[k * columns + c] = !down.data[k] ? 0.f : bias ? sum + __ldg(bias + first + c) : sum;
    }
  }
  __syncthreads();
  for (int c = tid; c < columns; c += kThreads) {
    float sum = 0;
    for (int k = 0; k < p.top_k; ++k) sum += weight[k] * products[k * columns + c];
    float* const to = sum_at + (c - tid);
    *to = p.add_to ? (c == tid ? before : *to) + p.add_scale * sum : sum;
  }
}

int64_t blocks_for(int64_t outputs) { return min(2 * int64_t(max(1, device_traits().multiprocessors)), outputs); }

uint64_t down_shared_bytes(const RoutedParams& p, int ring_bytes) {
  const int64_t blocks = blocks_for(p.hidden);
  return uint64_t(ring_bytes) + sizeof(float) * uint64_t(p.top_k * ((p.hidden + blocks - 1) / blocks));
}

template <class F>
cudaError_t start(Job job, cudaStream_t stream) {
  const RoutedParams& p = job.p;
  Shape shape;
  shape.block = kThreads, shape.start = Start::kEarly;
  shape.grid = unsigned(blocks_for(p.top_k * p.ffn)), shape.shared = size_t(RowRing<3, kMostChunks>::kBytes);
  job.chunks = int(p.hidden / kChunk);
  if (const cudaError_t error = launch(single_up_kernel<F>, shape, stream, job); error != cudaSuccess) return error;
  job.chunks = int(p.ffn / kChunk);
  // Slots for rows of what length there is.
  constexpr int kFew = 3, kSome = 4;
  const auto down = [&](auto kernel, int ring_bytes) {
    shape.grid = unsigned(blocks_for(p.hidden)), shape.shared = size_t(down_shared_bytes(p, ring_bytes));
    return launch(kernel, shape, stream, job);
  };
  if (job.chunks <= kFew) return down(single_down_kernel<F, 8, kFew>, RowRing<8, kFew>::kBytes);
  if (job.chunks <= kSome) return down(single_down_kernel<F, 6, kSome>, RowRing<6, kSome>::kBytes);
  return down(single_down_kernel<F, 3, kMostChunks>, RowRing<3, kMostChunks>::kBytes);
}

}  // namespace

bool single_routed_takes(const RoutedParams& p) {
  const Fmt format = p.gate_format;
  const auto width = [](int64_t cols) { return cols > 0 && cols % kChunk == 0 && cols <= kMostChunks * kChunk; };
  constexpr int kMostRing = RowRing<3, kMostChunks>::kBytes;
  static_assert(kMostRing >= RowRing<8, 3>::kBytes && kMostRing >= RowRing<6, 4>::kBytes);
  constexpr uint64_t kStatic = 2 << 10;  // bytes, more than there are
  return p.rows == 1 && (format == Fmt::kF16 || format == Fmt::kBF16) && p.up_format == format &&
         p.down_format == format && width(p.hidden) && width(p.ffn) && p.top_k <= kMostTopK && by_sixteen(p.x) &&
         down_shared_bytes(p, kMostRing) + kStatic <= uint64_t(device_traits().shared_bytes);
}

cudaError_t single_routed(const RoutedParams& p, float* middle, cudaStream_t stream) {
  if (!single_routed_takes(p)) return cudaErrorInvalidValue;
  Job job;
  job.p = p, job.middle = middle;
  return p.gate_format == Fmt::kF16 ? start<F16>(job, stream) : start<BF16>(job, stream);
}

}  // namespace ef::cuda
