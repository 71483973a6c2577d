// Embedding, norms, rotary embedding, and the simple loops.
#include "activate.cuh"
#include "formats.cuh"
#include "launch.cuh"

namespace ef::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t n) {
  constexpr int64_t kMost = 4096;  // loops stride over the rest
  return unsigned(max(int64_t(1), min(kMost, (n + kThreads - 1) / kThreads)));
}

// f(i) for i < n, or nothing at all.
template <class F>
__global__ void loop_kernel(int64_t n, F f) {
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < n; i += int64_t(gridDim.x) * kThreads) f(i);
}
template <class F>
cudaError_t loop(int64_t n, cudaStream_t stream, F f) {
  if (n <= 0) return cudaSuccess;
  return launch(loop_kernel<F>, {blocks_for(n), kThreads}, stream, n, f);
}

template <class F>
cudaError_t embed_as(const Weights& table, int64_t cols, const int32_t* ids, int64_t n, float scale, float* out,
                     cudaStream_t stream) {
  const int64_t octets = (cols + 7) / 8;
  return loop(n * octets, stream, [=] __device__(int64_t i) {
    const int64_t at = i / octets, o = i % octets, row = ids[at];
    const uint8_t* data = table.data + row * row_bytes_of<F>(cols);
    float v[8];
    const int count = int(min(int64_t(8), cols - 8 * o));
    if constexpr (F::kElements == 1) {
      for (int j = 0; j < count; ++j) v[j] = F::one(data, 8 * o + j);
      if (F::kBytes == 1 && table.scales)
        for (int j = 0; j < count; ++j) v[j] *= table.scales[row / 128 * ((cols + 127) / 128) + o / 16];
    } else {
      F::octet(data, o, v);
    }
    for (int j = 0; j < count; ++j) out[at * cols + 8 * o + j] = v[j] * scale;
  });
}

// A sum over the threads of a block, the same at every thread; the order depends on the number of threads alone.
template <int kCount>
__device__ float block_sum(float v) {
  __shared__ float partial[kCount / 32];
  for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  if constexpr (kCount == 32) return v;
  __syncthreads();  // the sum before this one has been read
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kCount / 32; ++i) sum += partial[i];
  return sum;
}

// Rows of up to kHeld * kCount numbers, each read once.
template <int kCount, int kHeld>
__global__ void __launch_bounds__(kCount) norm_short_kernel(const NormParams p) {
  let_later_start();
  const auto at = [](int j) { return threadIdx.x + j * kCount; };
  float weight[kHeld], bias[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const bool mine = at(j) < p.width;
    weight[j] = mine ? p.weight[at(j)] : 0.f, bias[j] = mine && p.bias ? p.bias[at(j)] : 0.f;
  }
  wait_for_earlier();
  for (int64_t r = blockIdx.x; r < p.rows; r += gridDim.x) {
    float x[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) x[j] = at(j) < p.width ? p.x[r * p.width + at(j)] : 0.f;
    float mean = 0, sum = 0, squares = 0;
    if (p.centred) {
#pragma unroll
      for (int j = 0; j < kHeld; ++j) sum += x[j];
      mean = block_sum<kCount>(sum) / float(p.width);
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j)
      if (at(j) < p.width) squares += (x[j] - mean) * (x[j] - mean);
    const float scale = 1.f / sqrtf(block_sum<kCount>(squares) / float(p.width) + p.eps);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (at(j) >= p.width) break;
      const float v = (x[j] - mean) * scale * weight[j];
      p.out[r * p.width + at(j)] = p.bias ? v + bias[j] : v;
    }
  }
}

template <int kCount>
__global__ void norm_kernel(const NormParams p) {
  let_later_start();
  wait_for_earlier();
  for (int64_t r = blockIdx.x; r < p.rows; r += gridDim.x) {
    const float* x = p.x + r * p.width;
    float* out = p.out + r * p.width;
    float mean = 0;
    if (p.centred) {
      float sum = 0;
      for (int64_t i = threadIdx.x; i < p.width; i += kCount) sum += x[i];
      mean = block_sum<kCount>(sum) / float(p.width);
    }
    float squares = 0;
    for (int64_t i = threadIdx.x; i < p.width; i += kCount) squares += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.f / sqrtf(block_sum<kCount>(squares) / float(p.width) + p.eps);
    for (int64_t i = threadIdx.x; i < p.width; i += kCount) {
      const float v = (x[i] - mean) * scale * p.weight[i];
      out[i] = p.bias ? v + p.bias[i] : v;
    }
  }
}

}  // namespace

cudaError_t embed(Fmt format, const Weights& table, int64_t cols, const int32_t* ids, int64_t n, float scale,
                  float* out, cudaStream_t stream) {
  const auto run = [&](auto kind) { return embed_as<decltype(kind)>(table, cols, ids, n, scale, out, stream); };
  switch (format) {
    case Fmt::kF32:
      return run(F32{});
    case Fmt::kF16:
      return run(F16{});
    case Fmt::kBF16:
      return run(BF16{});
    case Fmt::kF8E4M3:
      return run(F8{});
    case Fmt::kQ8_0:
      return run(Q8_0{});
    case Fmt::kQ4_0:
      return run(Q4_0{});
    case Fmt::kQ4_1:
      return run(Q4_1{});
    case Fmt::kQ5_0:
      return run(Q5_0{});
    case Fmt::kQ5_1:
      return run(Q5_1{});
    case Fmt::kQ2K:
      return run(Q2K{});
    case Fmt::kQ3K:
      return run(Q3K{});
    case Fmt::kQ4K:
      return run(Q4K{});
    case Fmt::kQ5K:
      return run(Q5K{});
    case Fmt::kQ6K:
      return run(Q6K{});
    case Fmt::kIQ4NL:
      return run(IQ4NL{});
    case Fmt::kIQ4XS:
      return run(IQ4XS{});
    case Fmt::kMXFP4:
      return run(MXFP4{});
    default:
      return cudaErrorInvalidValue;
  }
}

// Many short rows (a norm a head) get a warp each; the choice depends on the width alone.
cudaError_t norm(const NormParams& p, cudaStream_t stream) {
  if (p.rows <= 0) return cudaSuccess;
  constexpr int64_t kMostBlocks = 1 << 20, kShort = 256;
  const unsigned blocks = unsigned(min(p.rows, kMostBlocks));
  constexpr int kHeld = 8;
  if (p.width > kShort && p.width <= kHeld * kThreads)
    return launch(norm_short_kernel<kThreads, kHeld>, {blocks, kThreads, 0, Start::kEarly}, stream, p);
  return p.width <= kShort ? launch(norm_kernel<32>, {blocks, 32, 0, Start::kEarly}, stream, p)
                           : launch(norm_kernel<kThreads>, {blocks, kThreads, 0, Start::kEarly}, stream, p);
}

cudaError_t rope(const RopeParams& p, cudaStream_t stream) {
  const int half = p.rotary / 2;
  return loop(p.rows * p.heads * half, stream, [=] __device__(int64_t at) {
    const int64_t i = at % half, h = at / half % p.heads, r = at / half / p.heads;
    const float c = p.cos[r * half + i], s = p.sin[r * half + i];
    float* x = p.x + r * p.row_stride + h * p.head_dim + p.offset;
    float& first = p.interleaved ? x[2 * i] : x[i];
    float& second = p.interleaved ? x[2 * i + 1] : x[i + half];
    const float u = first, v = second;
    first = u * c - v * s;
    second = v * c + u * s;
  });
}

cudaError_t activation(const ActivationParams& p, cudaStream_t stream) {
  return loop(p.rows * p.width, stream, [=] __device__(int64_t at) {
    const int64_t r = at / p.width, i = at % p.width, in = r * p.in_stride + i;
    p.out[r * p.out_stride + i] = activate(p.kind, p.alpha, p.limit, p.gate[in], p.up[in]);
  });
}

cudaError_t combine(const float* expert_out, const float* weights, int64_t rows, int64_t hidden, int top_k, float* out,
                    cudaStream_t stream) {
  return loop(rows * hidden, stream, [=] __device__(int64_t at) {
    const int64_t r = at / hidden, i = at % hidden;
    float sum = 0;
    for (int64_t k = r * top_k; k < (r + 1) * top_k; ++k) sum += weights[k] * expert_out[k * hidden + i];
    out[at] = sum;
  });
}

cudaError_t add_scaled(float* x, const float* y, float scale, int64_t n, cudaStream_t stream) {
  return loop(n, stream, [=] __device__(int64_t i) { x[i] += scale * y[i]; });
}

cudaError_t gated_add(float* x, const float* y, const float* gate, int64_t rows, int64_t width, cudaStream_t stream) {
  return loop(rows * width, stream, [=] __device__(int64_t i) { x[i] += 1.f / (1.f + expf(-gate[i / width])) * y[i]; });
}

cudaError_t scale(float* x, float factor, int64_t n, cudaStream_t stream) {
  return loop(n, stream, [=] __device__(int64_t i) { x[i] *= factor; });
}

cudaError_t clamp(float* x, float low, float high, int64_t n, cudaStream_t stream) {
  // Written so that a NaN stays.
  return loop(n, stream, [=] __device__(int64_t i) { x[i] = x[i] < low ? low : x[i] > high ? high : x[i]; });
}

cudaError_t copy_2d(float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t width, int64_t rows,
                    cudaStream_t stream) {
  return loop(rows * width, stream, [=] __device__(int64_t at) {
    dst[at / width * dst_stride + at % width] = src[at / width * src_stride + at % width];
  });
}

}  // namespace ef::cuda
