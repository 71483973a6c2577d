// A router for several rows in one launch that fills the device: a block makes two outputs of sixteen rows, its threads
// sharing the width. The norm is a factor of a row's sums, which every block finds by itself: it reads the rows anyway.
// The last block to arrive chooses, a warp for each row; the others meanwhile write their part of the normalised rows.
#include "formats.cuh"
#include "launch.cuh"
#include "matvec.cuh"
#include "route.cuh"

namespace ef::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kLanes, kRows = 16, kOutputs = 2;
constexpr int kProducts = kOutputs * kRows, kSums = kProducts + kRows;  // of a block: products, then squares
static_assert(kProducts == kLanes);

// Columns c to c + 3 of a row of weights.
__device__ inline void four_weights(F32, const uint8_t* row, int64_t c, float (&out)[4]) {
  const float4 v = __ldg(reinterpret_cast<const float4*>(row) + c / 4);
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
__device__ inline void four_weights(F16, const uint8_t* row, int64_t c, float (&out)[4]) {
  const uint2 v = __ldg(reinterpret_cast<const uint2*>(row) + c / 4);
  const float2 a = halves_of(v.x), b = halves_of(v.y);
  out[0] = a.x, out[1] = a.y, out[2] = b.x, out[3] = b.y;
}
__device__ inline void four_weights(BF16, const uint8_t* row, int64_t c, float (&out)[4]) {
  const uint2 v = __ldg(reinterpret_cast<const uint2*>(row) + c / 4);
  out[0] = __uint_as_float(v.x << 16), out[1] = __uint_as_float(v.x & 0xffff0000u);
  out[2] = __uint_as_float(v.y << 16), out[3] = __uint_as_float(v.y & 0xffff0000u);
}

template <class F>
__global__ void __launch_bounds__(kThreads, 1) route_rows_kernel(const RouteLinearParams p) {
  EF_DYNAMIC_SHARED(float, memory);  // [kWarps, kSums]; then what choices take
  __shared__ float shrink[kRows];
  __shared__ bool last;
  let_later_start();
  const int tid = int(threadIdx.x), lane = tid % kLanes, warp = tid / kLanes;
  const int64_t cols = p.cols, first_out = int64_t(blockIdx.x) * kOutputs, first_row = int64_t(blockIdx.y) * kRows;
  const int rows = int(min(int64_t(kRows), p.route.rows - first_row)), experts = p.route.experts;
  const float* x = p.in.x + first_row * p.in.stride;
  float w[kOutputs][4];
  const auto load = [&](int64_t c) {
    const float4 norm = __ldg(reinterpret_cast<const float4*>(p.in.norm_weight + c));
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
      const int64_t out = min(first_out + n, int64_t(experts) - 1);
      four_weights(F{}, p.router.data + out * cols * F::kBytes, c, w[n]);
      w[n][0] *= norm.x, w[n][1] *= norm.y, w[n][2] *= norm.z, w[n][3] *= norm.w;
    }
  };
  int64_t c = 4 * tid;
  if (c < cols) load(c);
  wait_for_earlier();
  float product[kProducts] = {}, squares[kRows] = {};
  for (; c < cols; c += 4 * kThreads) {
    if (c != 4 * tid) load(c);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // No branch, so that loads go together: missing rows are computed, not stored.
      const float4 v = *reinterpret_cast<const float4*>(x + min(r, rows - 1) * p.in.stride + c);
      squares[r] = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares[r]))));
#pragma unroll
      for (int n = 0; n < kOutputs; ++n) {
        float& sum = product[n * kRows + r];
        sum = fmaf(w[n][0], v.x, fmaf(w[n][1], v.y, fmaf(w[n][2], v.z, fmaf(w[n][3], v.w, sum))));
      }
    }
  }
  const float of_product = fold(product, kLanes), of_squares = fold(squares, kLanes);  // of lane, of lane % kRows
  memory[warp * kSums + lane] = of_product;
  if (lane < kRows) memory[warp * kSums + kProducts + lane] = of_squares;
  __syncthreads();
  if (warp == 0) {
    const int r = lane % kRows;
    float sum = 0, square = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += memory[i * kSums + lane], square += memory[i * kSums + kProducts + r];
    const float factor = 1.f / sqrtf(square / float(cols) + p.in.eps);
    if (lane < kRows) shrink[lane] = factor;
    const int64_t out = first_out + lane / kRows;
    if (r < rows && out < experts)
      p.logits[(first_row + r) * experts + out] = sum * factor + (p.router.bias ? __ldg(p.router.bias + out) : 0.f);
    __threadfence();
    __syncwarp();
    if (lane == 0) last = atomicAdd(p.arrived + blockIdx.y, 1u) + 1 == gridDim.x;
  }
  __syncthreads();

  if (p.in.normed) {
    const int fours = int(cols / 4), begin = int(int64_t(fours) * blockIdx.x / gridDim.x),
              count = int(int64_t(fours) * (blockIdx.x + 1) / gridDim.x) - begin;
    for (int i = tid; i < rows * count; i += kThreads) {
      const int r = i / count;
      const int64_t at = 4 * int64_t(begin + i % count);
      const float4 v = *reinterpret_cast<const float4*>(x + r * p.in.stride + at),
                   weight = __ldg(reinterpret_cast<const float4*>(p.in.norm_weight + at));
      const float f = shrink[r];
      *reinterpret_cast<float4*>(p.in.normed + (first_row + r) * cols + at) =
          make_float4(v.x * f * weight.x, v.y * f * weight.y, v.z * f * weight.z, v.w * f * weight.w);
    }
  }
  if (!last) return;
  __threadfence();
  if (tid == 0) p.arrived[blockIdx.y] = 0;
  for (int r = warp; r < rows; r += kWarps) {
    float* logits = memory + r * routing::row_floats(p.route);
    // Other blocks wrote them: not from this multiprocessor's cache.
    for (int e = lane; e < experts; e += kLanes) logits[e] = __ldcg(p.logits + (first_row + r) * experts + e);
    __syncwarp();
    routing::route_row(p.route, first_row + r, logits, logits + experts, lane);
  }
}

uint64_t shared_bytes(const RouteLinearParams& p) {
  const int64_t rows = min(p.route.rows, int64_t(kRows));
  return sizeof(float) * max(uint64_t(kWarps * kSums), uint64_t(rows * routing::row_floats(p.route)));
}

}  // namespace

int64_t route_rows_counters(int64_t rows) { return (rows + kRows - 1) / kRows; }

bool route_rows_takes(const RouteLinearParams& p) {
  const Input& in = p.in;
  const bool format = p.format == Fmt::kF32 || p.format == Fmt::kF16 || p.format == Fmt::kBF16;
  const bool norm = in.norm_weight && !in.norm_bias && !in.centred;
  const bool aligned = p.cols % 4 == 0 && in.stride % 4 == 0 && by_sixteen(in.x) && by_sixteen(in.norm_weight) &&
                       by_sixteen(in.normed) && by_sixteen(p.router.data);
  constexpr uint64_t kStatic = 1 << 10;  // bytes, more than there are
  return format && norm && aligned && p.route.rows <= kRouteRows &&
         shared_bytes(p) + kStatic <= uint64_t(device_traits().shared_bytes);
}

cudaError_t route_rows(const RouteLinearParams& p, cudaStream_t stream) {
  if (p.route.rows <= 0) return cudaSuccess;
  if (!route_rows_takes(p)) return cudaErrorInvalidValue;
  Shape shape;
  shape.grid = dim3(unsigned((p.route.experts + kOutputs - 1) / kOutputs), unsigned(route_rows_counters(p.route.rows)));
  shape.block = kThreads, shape.shared = size_t(shared_bytes(p)), shape.start = Start::kEarly;
  switch (p.format) {
    case Fmt::kF32:
      return launch(route_rows_kernel<F32>, shape, stream, p);
    case Fmt::kF16:
      return launch(route_rows_kernel<F16>, shape, stream, p);
    default:
      return launch(route_rows_kernel<BF16>, shape, stream, p);
  }
}

}  // namespace ef::cuda
