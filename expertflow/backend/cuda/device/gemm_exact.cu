// Products of many rows in float32, for what must not be rounded: routers, and weights that are float32 themselves. A
// block of threads makes a tile of 64 rows by 32 outputs, a thread 4 by 4 of it, in steps of 32 along the width. For
// few rows that would be too few blocks: there, a block makes two outputs of sixteen rows, its warps sharing the width.
#include "formats.cuh"
#include "launch.cuh"
#include "matvec.cuh"

#include "fast.h"

namespace ef::cuda {
namespace {

constexpr int kThreads = 128, kRows = 64, kOutputs = 32, kStep = 32;
constexpr int kPart = 4;  // rows, and outputs, of a thread
static_assert(kOutputs * kStep / 8 == kThreads && kRows * kStep / 16 == kThreads);

// Eight weights of a row from column 8 * o on, zeros beyond the width.
template <class F>
__device__ void weights_at(const Weights& w, int64_t row, int64_t cols, int64_t o, float* out) {
  const uint8_t* data = w.data + row * row_bytes_of<F>(cols);
  const int64_t left = cols - 8 * o;
  if (left >= 8) {
    F::octet(data, o, out);
  } else {
    for (int j = 0; j < 8; ++j) out[j] = 0;
    if constexpr (F::kElements == 1)
      for (int j = 0; j < left; ++j) out[j] = F::one(data, 8 * o + j);
  }
  if constexpr (F::kBytes == 1 && F::kElements == 1) {
    if (!w.scales || left <= 0) return;
    const float factor = w.scales[row / 128 * ((cols + 127) / 128) + o / 16];
    for (int j = 0; j < 8; ++j) out[j] *= factor;
  }
}

__device__ void store(const GemmParams& p, int64_t row, int64_t out, float sum) {
  const float v = p.w.bias ? sum + p.w.bias[out] : sum;
  if (p.add_to)
    p.add_to[row * p.out_stride + out] += p.add_scale * v;
  else
    p.out[row * p.out_stride + out] = v;
}

template <class F>
__global__ void __launch_bounds__(kThreads) exact_kernel(const GemmParams p) {
  __shared__ float weight[kStep][kOutputs + 4], input[kStep][kRows + 4];
  const int t = threadIdx.x;
  const int64_t first_out = int64_t(blockIdx.x) * kOutputs, first_row = int64_t(blockIdx.y) * kRows;
  // What this thread loads: an octet of a weight row, 16 numbers of an input row.
  const int w_row = t / 4, w_octet = t % 4, x_row = t / 2, x_first = t % 2 * 16;
  const int64_t out_row = min(first_out + w_row, p.n - 1), in_row = min(first_row + x_row, p.rows - 1);
  const int row0 = t / 8 * kPart, out0 = t % 8 * kPart;  // what it sums
  float sum[kPart][kPart] = {};
  for (int64_t k = 0; k < p.cols; k += kStep) {
    float w[8], x[16];
    weights_at<F>(p.w, out_row, p.cols, k / 8 + w_octet, w);
    const float* source = p.x + in_row * p.x_stride + k + x_first;
    for (int j = 0; j < 16; ++j) x[j] = k + x_first + j < p.cols ? source[j] : 0.f;
    __syncthreads();  // the step before has been summed
    for (int j = 0; j < 8; ++j) weight[8 * w_octet + j][w_row] = w[j];
    for (int j = 0; j < 16; ++j) input[x_first + j][x_row] = x[j];
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < kStep; ++i) {
      const float4 a = *reinterpret_cast<const float4*>(&input[i][row0]);
      const float4 b = *reinterpret_cast<const float4*>(&weight[i][out0]);
      const float rows[kPart] = {a.x, a.y, a.z, a.w}, outs[kPart] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int r = 0; r < kPart; ++r)
#pragma unroll
        for (int n = 0; n < kPart; ++n) sum[r][n] = fmaf(rows[r], outs[n], sum[r][n]);
    }
  }
  for (int r = 0; r < kPart; ++r) {
    const int64_t row = first_row + row0 + r;
    if (row >= p.rows) break;
    for (int n = 0; n < kPart; ++n) {
      const int64_t out = first_out + out0 + n;
      if (out >= p.n) break;
      store(p, row, out, sum[r][n]);
    }
  }
}

constexpr int kFewWarps = 8, kFewRows = 16, kFewOutputs = 2;
constexpr int64_t kMostOfFew = 64;  // rows
static_assert(kFewRows * kFewOutputs == kLanes);

template <class F>
__global__ void __launch_bounds__(kLanes* kFewWarps) exact_few_kernel(const GemmParams p) {
  __shared__ float parts[kFewWarps][kLanes];
  let_later_start();
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t first_out = int64_t(blockIdx.x) * kFewOutputs, first_row = int64_t(blockIdx.y) * kFewRows;
  const int rows = int(min(int64_t(kFewRows), p.rows - first_row));
  const float* x = p.x + first_row * p.x_stride;
  const bool by_four = (reinterpret_cast<uintptr_t>(x) | uintptr_t(4 * p.x_stride)) % 16 == 0;
  float sum[kLanes] = {}, w[kFewOutputs][8];
  const auto load = [&](int64_t o) {
#pragma unroll
    for (int n = 0; n < kFewOutputs; ++n) weights_at<F>(p.w, min(first_out + n, p.n - 1), p.cols, o, w[n]);
  };
  if (8 * int64_t(threadIdx.x) < p.cols) load(threadIdx.x);
  wait_for_earlier();
  for (int64_t o = threadIdx.x; 8 * o < p.cols; o += kLanes * kFewWarps) {
    if (o != threadIdx.x) load(o);
    const bool whole = by_four && 8 * o + 8 <= p.cols;
#pragma unroll
    for (int r = 0; r < kFewRows; ++r) {
      const float* at = x + min(r, rows - 1) * p.x_stride + 8 * o;  // no branch, so that loads go together
      float v[8];
      if (whole) {
        const float4 a = reinterpret_cast<const float4*>(at)[0], b = reinterpret_cast<const float4*>(at)[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
      } else {
        for (int j = 0; j < 8; ++j) v[j] = 8 * o + j < p.cols ? at[j] : 0.f;
      }
#pragma unroll
      for (int n = 0; n < kFewOutputs; ++n)
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[n * kFewRows + r] = fmaf(w[n][j], v[j], sum[n * kFewRows + r]);
    }
  }
  parts[warp][lane] = fold(sum, kLanes);  // of output lane / 16 in row lane % 16
  __syncthreads();
  const int r = lane % kFewRows;
  const int64_t out = first_out + lane / kFewRows;
  if (warp > 0 || r >= rows || out >= p.n) return;
  float all = 0;
  for (int i = 0; i < kFewWarps; ++i) all += parts[i][lane];
  store(p, first_row + r, out, all);
}

template <class F>
cudaError_t exact(const GemmParams& p, cudaStream_t stream) {
  if (p.rows <= kMostOfFew) {
    Shape shape;
    shape.grid = dim3(unsigned((p.n + kFewOutputs - 1) / kFewOutputs), unsigned((p.rows + kFewRows - 1) / kFewRows));
    shape.block = unsigned(kLanes * kFewWarps);
    shape.start = Start::kEarly;
    return launch(exact_few_kernel<F>, shape, stream, p);
  }
  constexpr int64_t kMostTiles = 65535;  // of the grid's second axis
  for (int64_t first = 0; first < p.rows; first += kMostTiles * kRows) {
    GemmParams part = p;
    part.rows = min(p.rows - first, kMostTiles * kRows);
    part.x += first * p.x_stride;
    if (part.out) part.out += first * p.out_stride;
    if (part.add_to) part.add_to += first * p.out_stride;
    const dim3 grid(unsigned((p.n + kOutputs - 1) / kOutputs), unsigned((part.rows + kRows - 1) / kRows));
    if (const cudaError_t error = launch(exact_kernel<F>, {grid, dim3(kThreads)}, stream, part)) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t gemm_exact(const GemmParams& p, cudaStream_t stream) {
  if (p.rows <= 0 || p.n <= 0) return cudaSuccess;
  switch (p.format) {
    case Fmt::kF32:
      return exact<F32>(p, stream);
    case Fmt::kF16:
      return exact<F16>(p, stream);
    case Fmt::kBF16:
      return exact<BF16>(p, stream);
    case Fmt::kF8E4M3:
      return exact<F8>(p, stream);
    case Fmt::kQ8_0:
      return exact<Q8_0>(p, stream);
    case Fmt::kQ4_0:
      return exact<Q4_0>(p, stream);
    case Fmt::kQ4_1:
      return exact<Q4_1>(p, stream);
    case Fmt::kQ5_0:
      return exact<Q5_0>(p, stream);
    case Fmt::kQ5_1:
      return exact<Q5_1>(p, stream);
    case Fmt::kQ2K:
      return exact<Q2K>(p, stream);
    case Fmt::kQ3K:
      return exact<Q3K>(p, stream);
    case Fmt::kQ4K:
      return exact<Q4K>(p, stream);
    case Fmt::kQ5K:
      return exact<Q5K>(p, stream);
    case Fmt::kQ6K:
      return exact<Q6K>(p, stream);
    case Fmt::kIQ4NL:
      return exact<IQ4NL>(p, stream);
    case Fmt::kIQ4XS:
      return exact<IQ4XS>(p, stream);
    case Fmt::kMXFP4:
      return exact<MXFP4>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ef::cuda
