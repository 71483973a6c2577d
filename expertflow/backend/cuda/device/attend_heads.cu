// Norms, clipping and rotary embedding of all heads of a row, by one block; keys and values on to the cache.
#include "attend.cuh"

namespace ef::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct KvF32 {
  using T = float;
  static __device__ T put(float v) { return v; }
};

// One head's numbers, in shared memory, to where q goes.
template <class Kv>
__device__ void put_query(const float* x, int n, int lane, float* to) {
  typename Kv::T* half = reinterpret_cast<typename Kv::T*>(to);
  const float range = range_factor(largest_magnitude<32>(x, n, lane));
  for (int i = lane; i < n; i += 32) half[i] = Kv::put(x[i] * range);
  if (lane == 0) to[n / 2] = 1.f / range;
}

template <class Kv>
__global__ void __launch_bounds__(kThreads) heads_kernel(const AttendParams p, QueryForm form) {
  using T = typename Kv::T;
  EF_DYNAMIC_SHARED(float, shared);
  __shared__ float partial[kWarps];
  const KvParams& kv = p.kv;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pairs = p.rotary / 2;
  const int64_t row = blockIdx.x, q_width = int64_t(p.heads) * kv.k_dim, k_width = int64_t(kv.kv_heads) * kv.k_dim;
  float* x = shared + warp * max(kv.k_dim, kv.v_dim);
  let_later_start();
  wait_for_earlier();
  float q_inverse = 0, k_inverse = 0;
  if (p.norm_whole) {
    if (p.q_norm) q_inverse = inverse_rms_of_row(p.q + row * q_width, int(q_width), p.norm_eps, partial);
    if (p.k_norm) k_inverse = inverse_rms_of_row(p.k + row * k_width, int(k_width), p.norm_eps, partial);
  }
  const int32_t* table = kv.block_table + int64_t(kv.sequence[row]) * kv.max_blocks;
  const int64_t at = place_of(kv, table, kv.position[row]);
  const int first = form == QueryForm::kLeft ? p.heads : 0;
  const int count = p.heads + kv.kv_heads * (kv.v ? 2 : 1);
  for (int i = first + warp; i < count; i += kWarps) {
    const bool is_q = i < p.heads, is_k = !is_q && i < p.heads + kv.kv_heads;
    const int head = is_q ? i : is_k ? i - p.heads : i - p.heads - kv.kv_heads, n = is_q || is_k ? kv.k_dim : kv.v_dim;
    const float* from = is_q   ? p.q + row * q_width + int64_t(head) * n
                        : is_k ? p.k + row * k_width + int64_t(head) * n
                               : p.v + (row * kv.kv_heads + head) * n;
    for (int j = lane; j < n; j += 32) x[j] = from[j];
    __syncwarp();
    const float* weight = is_q ? p.q_norm : is_k ? p.k_norm : nullptr;
    float inverse = is_q ? q_inverse : k_inverse;
    if (weight && p.norm_whole) weight += int64_t(head) * n;
    if (weight && !p.norm_whole) inverse = inverse_rms<32>(x, n, lane, p.norm_eps);
    finish_head<32>(p, weight, inverse, p.cos + row * pairs, p.sin + row * pairs, is_q || is_k ? pairs : 0, n, lane, x);
    if (is_q) {
      float* to = p.q + row * q_width + int64_t(head) * n;
      if constexpr (sizeof(T) == 2) {
        if (form == QueryForm::kHalf) put_query<Kv>(x, n, lane, to);
      }
      if (form == QueryForm::kFloat)
        for (int j = lane; j < n; j += 32) to[j] = x[j];
    } else {
      T* to = reinterpret_cast<T*>(is_k ? kv.k : kv.v) + (at * kv.kv_heads + head) * n;
      for (int j = lane; j < n; j += 32) to[j] = Kv::put(x[j]);
    }
    __syncwarp();
  }
}

}  // namespace

cudaError_t attend_heads(const AttendParams& p, QueryForm form, cudaStream_t stream) {
  const size_t bytes = size_t(kWarps) * size_t(max(p.kv.k_dim, p.kv.v_dim)) * sizeof(float);
  const Shape shape{dim3(unsigned(p.kv.rows)), kThreads, bytes, Start::kEarly};
  if (p.kv.type == 0) return launch(heads_kernel<KvF32>, shape, stream, p, form);
  if (p.kv.type == 1) return launch(heads_kernel<KvF16>, shape, stream, p, form);
  return launch(heads_kernel<KvBF16>, shape, stream, p, form);
}

}  // namespace ef::cuda
