// How a block narrows a row: see narrow.cuh.
#pragma once
#include "activate.cuh"
#include "gemm_task.cuh"
#include "halves.cuh"
#include "launch.cuh"
#include "narrow.cuh"

namespace ef::cuda {

// Chunks that a thread keeps between finding the scale and writing; more are computed twice.
constexpr int kHeldChunks = 2;
constexpr int kMostNarrowThreads = 512;

struct PlainSource {
  static constexpr bool kNorm = false, kSums = false;
  const float* x;
  int64_t stride;
  bool by_two;  // pairs are aligned
  // Columns c and c + 1, c even; zero from `cols` on.
  __device__ float2 pair(int64_t row, int64_t c, int64_t cols) const {
    const float* at = x + row * stride + c;
    if (by_two && c + 1 < cols) return *reinterpret_cast<const float2*>(at);
    return make_float2(c < cols ? at[0] : 0.f, c + 1 < cols ? at[1] : 0.f);
  }
};

// Rows that are to be normalised first, for which a block must hold all of a row.
struct NormSource : PlainSource {
  static constexpr bool kNorm = true;
  NormParams norm;
};

// Rows that are sums over ranks, as combine_kernel makes them, added to what is there; then normalised.
struct SumSource : NormSource {
  static constexpr bool kSums = true;
  const int32_t* ids;
  const float *weights, *down;
  float* add_to;
  float add_scale;
  int experts, top_k;
  // Columns c to c + 7.
  __device__ void octet(int64_t row, int64_t c, int64_t cols, float (&v)[8]) const {
    float4* const to = reinterpret_cast<float4*>(add_to + row * cols + c);
    const float4 before[2] = {to[0], to[1]};
    float sum[8] = {};
#pragma unroll 8
    for (int k = 0; k < top_k; ++k) {
      // Read in any case, so that the loads go together; without an expert there is no place, and nothing computed.
      const int id = ids[row * top_k + k];
      const float weight = weights[row * top_k + k];
      const float4* from = reinterpret_cast<const float4*>(down + (row * top_k + k) * cols + c);
      const float4 a = from[0], b = from[1];
      const float part[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = id >= 0 && id < experts ? sum[i] + weight * part[i] : sum[i];
    }
    v[0] = before[0].x + add_scale * sum[0], v[1] = before[0].y + add_scale * sum[1];
    v[2] = before[0].z + add_scale * sum[2], v[3] = before[0].w + add_scale * sum[3];
    v[4] = before[1].x + add_scale * sum[4], v[5] = before[1].y + add_scale * sum[5];
    v[6] = before[1].z + add_scale * sum[6], v[7] = before[1].w + add_scale * sum[7];
    to[0] = make_float4(v[0], v[1], v[2], v[3]), to[1] = make_float4(v[4], v[5], v[6], v[7]);
  }
};

struct GatedSource {
  static constexpr bool kNorm = false, kSums = false;
  PlainSource gate, up;
  Act kind;
  float alpha, limit;
  __device__ float2 pair(int64_t row, int64_t c, int64_t cols) const {
    const float2 g = gate.pair(row, c, cols), u = up.pair(row, c, cols);
    // Padding stays zero whatever the activation makes of zeros.
    return make_float2(c < cols ? activate(kind, alpha, limit, g.x, u.x) : 0.f,
                       c + 1 < cols ? activate(kind, alpha, limit, g.y, u.y) : 0.f);
  }
};

__device__ inline uint32_t most_of_block(uint32_t v) {
  __shared__ uint32_t partial[kMostNarrowThreads / 32];
  for (int mask = 16; mask > 0; mask /= 2) v = max(v, __shfl_xor_sync(0xffffffffu, v, mask));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  for (int i = 0; i < int(blockDim.x) / 32; ++i) v = max(v, partial[i]);
  return v;
}

__device__ inline float sum_of_block(float v) {
  __shared__ float partial[kMostNarrowThreads / 32];
  for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  __syncthreads();  // the sum before this one has been read
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < int(blockDim.x) / 32; ++i) sum += partial[i];
  return sum;
}

// Waits for earlier kernels by itself. Of at most kMostNarrowThreads threads.
template <Narrow kKind, class Source>
__device__ void narrow_row(const Source& source, const int64_t row, const int64_t cols, const int32_t* live,
                           const NarrowRows& to) {
  constexpr bool kBrain = kKind == Narrow::kBrain && kBrainProducts;
  const auto column = [&](int64_t chunk, int t) {
    return to.natural ? 8 * chunk + 2 * t : 32 * (chunk / 4) + 8 * t + 2 * (chunk % 4);
  };
  // A norm's weights, of what this thread will hold.
  constexpr int kNormed = Source::kNorm ? kHeldChunks : 1;
  float weight[kNormed][8] = {}, bias[kNormed][8] = {};
  if constexpr (Source::kNorm) {
#pragma unroll
    for (int i = 0; i < kHeldChunks; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int64_t chunk = threadIdx.x + int64_t(i) * blockDim.x, c = column(chunk, j / 2) + j % 2;
        if (c >= cols) continue;
        weight[i][j] = source.norm.weight[c];
        if (source.norm.bias) bias[i][j] = source.norm.bias[c];
      }
    }
  }
  wait_for_earlier();
  const auto read = [&](int64_t chunk, float(&v)[8]) {
    if constexpr (Source::kSums) {
      if (8 * chunk < cols)
        source.octet(row, 8 * chunk, cols, v);
      else
        for (float& zero : v) zero = 0;
    } else {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float2 two = source.pair(row, column(chunk, t), cols);
        v[2 * t] = two.x, v[2 * t + 1] = two.y;
      }
    }
  };
  // Magnitudes as integers: they compare like the floats, and infinities and NaNs come last.
  uint32_t most = 0;
  const auto note = [&](const float(&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) most = max(most, __float_as_uint(v[i]) & 0x7fffffffu);
  };
  float held[kHeldChunks][8];
#pragma unroll
  for (int i = 0; i < kHeldChunks; ++i) {
    const int64_t chunk = threadIdx.x + int64_t(i) * blockDim.x;
    if (chunk < to.chunks) read(chunk, held[i]);
  }
  if (live && row >= *live) return;  // asked last, so that it does not hold up the reads
  if constexpr (Source::kNorm) {
    const NormParams& n = source.norm;
    // f(number, column, weight, bias) for what this thread holds.
    const auto for_held = [&](auto f) {
#pragma unroll
      for (int i = 0; i < kHeldChunks; ++i) {
        const int64_t chunk = threadIdx.x + int64_t(i) * blockDim.x;
        if (chunk >= to.chunks) break;
#pragma unroll
        for (int j = 0; j < 8; ++j)
          if (const int64_t c = column(chunk, j / 2) + j % 2; c < cols) f(held[i][j], c, weight[i][j], bias[i][j]);
      }
    };
    float mean = 0, sum = 0, squares = 0;
    if (n.centred) {
      for_held([&](float v, int64_t, float, float) { sum += v; });
      mean = sum_of_block(sum) / float(cols);
    }
    for_held([&](float v, int64_t, float, float) { squares += (v - mean) * (v - mean); });
    const float shrink = 1.f / sqrtf(sum_of_block(squares) / float(cols) + n.eps);
    for_held([&](float& v, int64_t c, float scale_by, float add) {
      v = (v - mean) * shrink * scale_by + add;
      if (n.out) n.out[row * cols + c] = v;
    });
  }
#pragma unroll
  for (int i = 0; i < kHeldChunks; ++i)
    if (threadIdx.x + int64_t(i) * blockDim.x < to.chunks) note(held[i]);
  float scale = 1.f, factor = 1.f;
  if constexpr (!kBrain) {
    for (int64_t chunk = threadIdx.x + int64_t(kHeldChunks) * blockDim.x; chunk < to.chunks; chunk += blockDim.x) {
      float v[8];
      read(chunk, v), note(v);
    }
    // A magnitude in [2^e, 2^(e + 1)) is scaled by 2^(9 - e), as far as both factors are normal floats.
    const int power = max(-118, min(118, 127 + 9 - int(most_of_block(most) >> 23)));
    scale = __uint_as_float(uint32_t(127 + power) << 23), factor = __uint_as_float(uint32_t(127 - power) << 23);
  }
  if (threadIdx.x == 0) to.factor[row] = factor;
  const auto write = [&](int64_t chunk, const float(&v)[8]) {
    uint32_t w[4];
#pragma unroll
    for (int t = 0; t < 4; ++t)
      w[t] = kBrain ? brain_pair_of(v[2 * t], v[2 * t + 1]) : pair_of(v[2 * t] * scale, v[2 * t + 1] * scale);
    to.data[row * to.chunks + chunk] = make_uint4(w[0], w[1], w[2], w[3]);
  };
#pragma unroll
  for (int i = 0; i < kHeldChunks; ++i) {
    const int64_t chunk = threadIdx.x + int64_t(i) * blockDim.x;
    if (chunk < to.chunks) write(chunk, held[i]);
  }
  for (int64_t chunk = threadIdx.x + int64_t(kHeldChunks) * blockDim.x; chunk < to.chunks; chunk += blockDim.x) {
    float v[8];
    read(chunk, v), write(chunk, v);
  }
}

inline PlainSource plain_source(const float* x, int64_t stride) {
  return {x, stride, (reinterpret_cast<uintptr_t>(x) | uintptr_t(4 * stride)) % 8 == 0};
}

}  // namespace ef::cuda
