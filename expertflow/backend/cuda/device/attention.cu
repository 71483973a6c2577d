// Attention over block tables. A block of threads takes one row, some heads of one key head, and one piece of kSplit
// positions that begins at a multiple of kSplit; a second kernel joins the pieces in ascending order. What is summed
// where depends on the row's position and window alone, so a row's bits are the same in any company and any block size.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "launch.cuh"
#include "params.h"

namespace ef::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostHeads = 8;  // that share a pass over keys and values

struct Number32 {
  using T = float;
  static __device__ float get(T v) { return v; }
  static __device__ T put(float v) { return v; }
};
struct Number16 {
  using T = __half;
  static __device__ float get(T v) { return __half2float(v); }
  static __device__ T put(float v) { return __float2half_rn(v); }
};
struct NumberB16 {
  using T = __nv_bfloat16;
  static __device__ float get(T v) { return __bfloat162float(v); }
  static __device__ T put(float v) { return __float2bfloat16_rn(v); }
};

// Where a position of a row's sequence lies, in rows of the pool (a row: all key heads of one token).
__device__ int64_t place(const KvParams& kv, const int32_t* table, int64_t position) {
  return int64_t(table[position / kv.block_tokens]) * kv.block_tokens + position % kv.block_tokens;
}

template <class Number>
__global__ void store_kernel(const KvParams kv, const float* k, const float* v) {
  using T = typename Number::T;
  const int64_t r = blockIdx.x;
  const int64_t at = place(kv, kv.block_table + int64_t(kv.sequence[r]) * kv.max_blocks, kv.position[r]);
  const int64_t k_width = int64_t(kv.kv_heads) * kv.k_dim, v_width = int64_t(kv.kv_heads) * kv.v_dim;
  for (int64_t i = threadIdx.x; i < k_width; i += blockDim.x)
    reinterpret_cast<T*>(kv.k)[at * k_width + i] = Number::put(k[r * k_width + i]);
  if (!kv.v) return;
  for (int64_t i = threadIdx.x; i < v_width; i += blockDim.x)
    reinterpret_cast<T*>(kv.v)[at * v_width + i] = Number::put(v[r * v_width + i]);
}

__device__ int64_t first_visible(int64_t position, int window) {
  return window > 0 ? max(int64_t(0), position - window + 1) : 0;
}

// Scratch of a (row, head, piece): the weighted values, then the largest score and the sum of weights.
__device__ float* piece_of(const AttentionParams& p, int64_t row, int head, int64_t piece, int64_t pieces) {
  return p.scratch + ((row * p.heads + head) * pieces + piece) * (p.kv.v_dim + 2);
}

template <class Number>
__global__ void __launch_bounds__(kThreads) piece_kernel(const AttentionParams p, int64_t pieces, int chunk) {
  using T = typename Number::T;
  EF_DYNAMIC_SHARED(float, shared);
  __shared__ int64_t places[kSplit];
  float* q = shared;                            // [chunk, k_dim]
  float* scores = shared + chunk * p.kv.k_dim;  // [chunk, kSplit]
  const KvParams& kv = p.kv;
  const int64_t row = blockIdx.x, piece = blockIdx.z;
  const int per_kv = p.heads / kv.kv_heads, chunks = (per_kv + chunk - 1) / chunk;
  const int kv_head = blockIdx.y / chunks, first_head = blockIdx.y % chunks * chunk;
  const int heads = min(chunk, per_kv - first_head), head0 = kv_head * per_kv + first_head;
  const int64_t position = kv.position[row];
  const int64_t begin = max(piece * kSplit, first_visible(position, p.window));
  const int64_t end = min((piece + 1) * kSplit, position + 1);
  if (begin >= end) return;
  const int n = int(end - begin), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t* table = kv.block_table + int64_t(kv.sequence[row]) * kv.max_blocks;

  for (int i = threadIdx.x; i < n; i += kThreads) places[i] = place(kv, table, begin + i);
  for (int i = threadIdx.x; i < heads * kv.k_dim; i += kThreads) q[i] = p.q[(row * p.heads + head0) * kv.k_dim + i];
  __syncthreads();

  // Scores: a warp a position, all heads of the chunk.
  for (int i = warp; i < n; i += kWarps) {
    const T* k = reinterpret_cast<const T*>(kv.k) + (places[i] * kv.kv_heads + kv_head) * kv.k_dim;
    float sum[kMostHeads] = {};
    for (int d = lane; d < kv.k_dim; d += 32) {
      const float key = Number::get(k[d]);
#pragma unroll
      for (int h = 0; h < kMostHeads; ++h)
        if (h < heads) sum[h] = fmaf(q[h * kv.k_dim + d], key, sum[h]);
    }
#pragma unroll
    for (int h = 0; h < kMostHeads; ++h) {
      if (h >= heads) break;
      for (int mask = 16; mask > 0; mask /= 2) sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], mask);
      if (lane == 0) scores[h * kSplit + i] = sum[h] * p.scale;
    }
  }
  __syncthreads();

  // Weights: a warp a head.
  for (int h = warp; h < heads; h += kWarps) {
    float largest = -INFINITY, sum = 0;
    for (int i = lane; i < n; i += 32) largest = fmaxf(largest, scores[h * kSplit + i]);
    for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
    for (int i = lane; i < n; i += 32) sum += scores[h * kSplit + i] = expf(scores[h * kSplit + i] - largest);
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    if (lane == 0) {
      float* out = piece_of(p, row, head0 + h, piece, pieces) + kv.v_dim;
      out[0] = largest, out[1] = sum;
    }
  }
  __syncthreads();

  // Values: a thread an element, all heads of the chunk.
  const T* values = reinterpret_cast<const T*>(kv.v ? kv.v : kv.k);
  const int v_width = kv.v ? kv.v_dim : kv.k_dim;
  for (int d = threadIdx.x; d < kv.v_dim; d += kThreads) {
    float sum[kMostHeads] = {};
#pragma unroll 4
    for (int i = 0; i < n; ++i) {
      const float value = Number::get(values[(places[i] * kv.kv_heads + kv_head) * v_width + d]);
#pragma unroll
      for (int h = 0; h < kMostHeads; ++h)
        if (h < heads) sum[h] = fmaf(scores[h * kSplit + i], value, sum[h]);
    }
#pragma unroll
    for (int h = 0; h < kMostHeads; ++h)
      if (h < heads) piece_of(p, row, head0 + h, piece, pieces)[d] = sum[h];
  }
}

__global__ void join_kernel(const AttentionParams p, int64_t pieces) {
  const int64_t row = blockIdx.x, position = p.kv.position[row];
  const int head = blockIdx.y, v_dim = p.kv.v_dim;
  const int64_t first = first_visible(position, p.window) / kSplit, last = position / kSplit;
  float largest = p.sinks ? p.sinks[head] : -INFINITY;
  for (int64_t i = first; i <= last; ++i) largest = fmaxf(largest, piece_of(p, row, head, i, pieces)[v_dim]);
  float sum = p.sinks ? expf(p.sinks[head] - largest) : 0.f;
  for (int64_t i = first; i <= last; ++i) {
    const float* piece = piece_of(p, row, head, i, pieces) + v_dim;
    sum = fmaf(piece[1], expf(piece[0] - largest), sum);
  }
  for (int d = threadIdx.x; d < v_dim; d += blockDim.x) {
    float value = 0;
    for (int64_t i = first; i <= last; ++i) {
      const float* piece = piece_of(p, row, head, i, pieces);
      value = fmaf(piece[d], expf(piece[v_dim] - largest), value);
    }
    p.out[(row * p.heads + head) * v_dim + d] = value / sum;
  }
}

int64_t pieces_for(int64_t reach) { return (reach + kSplit - 1) / kSplit; }

template <class Number>
cudaError_t attention_as(const AttentionParams& p, cudaStream_t stream) {
  const int64_t pieces = pieces_for(p.reach);
  const int per_kv = p.heads / p.kv.kv_heads;
  // Shared memory holds the queries of a chunk: fewer of them where keys are very long.
  int chunk = min(per_kv, kMostHeads);
  const auto bytes = [&] { return (int64_t(chunk) * (p.kv.k_dim + kSplit)) * int64_t(sizeof(float)); };
  constexpr int64_t kMostBytes = 44 << 10;
  while (chunk > 1 && bytes() > kMostBytes) --chunk;
  const int chunks = (per_kv + chunk - 1) / chunk;
  const dim3 grid(unsigned(p.kv.rows), unsigned(p.kv.kv_heads * chunks), unsigned(pieces));
  const cudaError_t error = launch(piece_kernel<Number>, {grid, kThreads, size_t(bytes())}, stream, p, pieces, chunk);
  if (error != cudaSuccess) return error;
  return launch(join_kernel, {dim3(unsigned(p.kv.rows), unsigned(p.heads)), 128}, stream, p, pieces);
}

}  // namespace

int64_t attention_scratch_floats(int64_t rows, int heads, int v_dim, int64_t reach) {
  return rows * heads * pieces_for(reach) * (v_dim + 2);
}

cudaError_t store_kv(const KvParams& kv, const float* k, const float* v, cudaStream_t stream) {
  if (kv.rows <= 0) return cudaSuccess;
  const auto kernel = kv.type == 0   ? store_kernel<Number32>
                      : kv.type == 1 ? store_kernel<Number16>
                                     : store_kernel<NumberB16>;
  return launch(kernel, {unsigned(kv.rows), kThreads}, stream, kv, k, v);
}

cudaError_t attention(const AttentionParams& p, cudaStream_t stream) {
  if (p.kv.rows <= 0) return cudaSuccess;
  if (p.kv.type == 0) return attention_as<Number32>(p, stream);
  if (p.kv.type == 1) return attention_as<Number16>(p, stream);
  return attention_as<NumberB16>(p, stream);
}

}  // namespace ef::cuda
