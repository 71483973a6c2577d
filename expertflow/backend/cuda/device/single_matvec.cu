// matvec() of one row with weights of 16 bits: see single_row.cuh.
#include "single.cuh"
#include "single_row.cuh"

namespace ef::cuda {
namespace {

using namespace single;

constexpr int kDepth = 3;
constexpr int64_t kMostAhead = 192 << 10;  // bytes of a block's weights that the L2 is asked for at the start

struct Job {
  Input in;
  int cols = 0, chunks = 0;
  int split = 1;  ///< warps that share a row
  int rows = 0;   ///< of all matrices
  int count = 0;
  Product product[3];
  float* add_to = nullptr;
  float add_scale = 1.f;
};

struct Row {
  int matrix = 0, row = 0;
};
// A row of all matrices, one behind the other.
__device__ inline Row row_at(const Job& job, int at) {
  Row r{0, at};
  while (r.matrix + 1 < job.count && r.row >= int(job.product[r.matrix].n)) r.row -= int(job.product[r.matrix++].n);
  return r;
}

template <class F>
__global__ void __launch_bounds__(kThreads, 2) single_kernel(const Job job) {
  using R = RowRing<kDepth, kMostChunks>;
  EF_DYNAMIC_SHARED(uint8_t, memory);
  float* const norm_weight = reinterpret_cast<float*>(memory + R::kBytes);  // [cols], with a norm
  float* const parts = norm_weight;                                         // [rows, split]: without
  let_later_start();
  const int tid = int(threadIdx.x), lane = tid % kLanes, warp = tid / kLanes;
  const int first = int(int64_t(job.rows) * blockIdx.x / gridDim.x),
            end = int(int64_t(job.rows) * (blockIdx.x + 1) / gridDim.x);
  const int groups = kWarps / job.split, group = warp / job.split, part = warp % job.split;
  const int64_t row_bytes = 2 * int64_t(job.cols);
  const auto row_of = [&](int turn) -> const uint8_t* {
    const int at = first + group + turn * groups;
    if (at >= end) return nullptr;
    const Row r = row_at(job, at);
    return job.product[r.matrix].w.data + r.row * row_bytes + part * int(kMostChunks * kChunkBytes);
  };
  const bool normed = job.in.norm_weight != nullptr;
  if (normed) {
    for (int i = 4 * tid; i < job.cols; i += 4 * kThreads) copy16_async(norm_weight + i, job.in.norm_weight + i, true);
    copy_async_commit();
  }
  R ring(memory, job.chunks);
  ring.fill(row_of);
  for (int at = first, left = int(min(int64_t(end - first), kMostAhead / row_bytes)); left > 0;) {
    const Row r = row_at(job, at);
    const int some = min(left, int(job.product[r.matrix].n) - r.row);
    ask_for(job.product[r.matrix].w.data + r.row * row_bytes, some * row_bytes);
    at += some, left -= some;
  }
  if (normed) {
    copy_async_wait<kDepth>();
    __syncthreads();
  }

  wait_for_earlier();
  float x[kMostChunks][8];
  hold(job.in.x + part * kMostChunks * kChunk, job.chunks, lane, x);
  float factor = 1.f;
  if (normed) {
    float squares[1] = {};
#pragma unroll
    for (int i = 0; i < kMostChunks; ++i) {
      if (i >= job.chunks) break;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        squares[0] = fmaf(x[i][j], x[i][j], squares[0]);
        x[i][j] *= norm_weight[i * kChunk + 8 * lane + j];
      }
    }
    factor = 1.f / sqrtf(fold(squares, kLanes) / float(job.cols) + job.in.eps);
    if (job.in.normed && blockIdx.x == 0 && warp == 0) {
#pragma unroll
      for (int i = 0; i < kMostChunks; ++i) {
        if (i >= job.chunks) break;
#pragma unroll
        for (int j = 0; j < 8; ++j) job.in.normed[i * kChunk + 8 * lane + j] = x[i][j] * factor;
      }
    }
  }
  const auto store = [&](int at, float sum) {
    const Row r = row_at(job, at);
    const Product& p = job.product[r.matrix];
    if (p.w.bias) sum += __ldg(p.w.bias + r.row);
    if (job.add_to)
      job.add_to[r.row] += job.add_scale * sum;
    else
      p.out[r.row] = sum;
  };
  for (int turn = 0, at = first + group; at < end; ++turn, at += groups) {
    const float sum = ring.next(F{}, turn, x, row_of) * factor;
    if (lane > 0) continue;
    if (job.split == 1)
      store(at, sum);
    else
      parts[(at - first) * job.split + part] = sum;
  }
  if (job.split == 1) return;
  __syncthreads();
  for (int at = first + tid; at < end; at += kThreads) {
    float sum = 0;
    for (int i = 0; i < job.split; ++i) sum += parts[(at - first) * job.split + i];
    store(at, sum);
  }
}

bool make_job(const MatvecParams& p, Job& job) {
  constexpr int64_t kPart = int64_t(kMostChunks) * kChunk;
  const bool whole = p.cols <= kPart;
  const Fmt format = p.product[0].format;
  if (p.rows != 1 || (format != Fmt::kF16 && format != Fmt::kBF16)) return false;
  if (p.cols <= 0 || p.cols % (whole ? kChunk : kPart) != 0 || !by_sixteen(p.in.x)) return false;
  job.split = whole ? 1 : int(p.cols / kPart);
  if (job.split > kWarps || (job.split & (job.split - 1)) != 0) return false;
  if (p.in.norm_weight && (!whole || p.in.centred || p.in.norm_bias || !by_sixteen(p.in.norm_weight))) return false;
  int64_t rows = 0;
  for (int i = 0; i < p.count; ++i) {
    if (p.product[i].format != format || !by_sixteen(p.product[i].w.data)) return false;
    rows += p.product[i].n;
    job.product[i] = p.product[i];
  }
  if (rows > INT32_MAX) return false;
  job.in = p.in, job.cols = int(p.cols), job.chunks = whole ? int(p.cols / kChunk) : kMostChunks;
  job.rows = int(rows), job.count = p.count;
  job.add_to = p.add_to, job.add_scale = p.add_scale;
  return true;
}

struct Launch {
  Shape shape;
  bool fits = false;
};
Launch launch_of(const Job& job) {
  const int processors = max(1, device_traits().multiprocessors);
  const int64_t blocks = min(int64_t(job.rows), 2 * int64_t(processors));
  const int64_t rows = (job.rows + blocks - 1) / max(blocks, int64_t(1));
  const uint64_t more = job.in.norm_weight ? sizeof(float) * uint64_t(job.cols)
                        : job.split > 1    ? sizeof(float) * uint64_t(rows * job.split)
                                           : 0;
  Launch l;
  l.shape.grid = unsigned(blocks), l.shape.block = kThreads;
  l.shape.shared = size_t(RowRing<kDepth, kMostChunks>::kBytes + more), l.shape.start = Start::kEarly;
  l.fits = l.shape.shared <= size_t(device_traits().shared_bytes);
  return l;
}

}  // namespace

bool single_matvec_takes(const MatvecParams& p) {
  Job job;
  return make_job(p, job) && launch_of(job).fits;
}

cudaError_t single_matvec(const MatvecParams& p, cudaStream_t stream) {
  Job job;
  if (!make_job(p, job)) return cudaErrorInvalidValue;
  const Launch l = launch_of(job);
  if (!l.fits) return cudaErrorInvalidValue;
  if (job.rows == 0) return cudaSuccess;
  return launch(p.product[0].format == Fmt::kF16 ? single_kernel<F16> : single_kernel<BF16>, l.shape, stream, job);
}

}  // namespace ef::cuda
