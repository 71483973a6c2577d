// Numbers that blocks of layers.cu hand to each other, through memory that says itself when it is ready: the lowest bit
// of each is the parity of the layer that it belongs to, which costs a float the last of its 24 digits (and turns an
// infinity into a NaN). Every number is written once a layer, and nobody gets two layers ahead, since all wait twice a
// layer for numbers of all blocks.
#pragma once
#include "attend.cuh"
#include "matvec.cuh"

namespace ef::cuda::stay {

constexpr int kWarps = 8, kThreads = kWarps * kLanes;

#ifdef EF_CUDA_EMULATED
__device__ inline uint4 look(const float* at) { return *reinterpret_cast<const uint4*>(at); }
__device__ inline void look_where(bool wanted, const float* at, uint4& v) {
  if (wanted) v = look(at);
}
__device__ inline unsigned look1(const float* at) { return *reinterpret_cast<const unsigned*>(at); }
__device__ inline void show(float* at, unsigned bits) { *reinterpret_cast<unsigned*>(at) = bits; }
__device__ inline void pause() { emulated::let_other_blocks(); }
__device__ inline unsigned arrivals(const unsigned* at) { return *at; }
#else
__device__ inline uint4 look(const float* at) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}
// Without a branch, so that several are under way at once.
__device__ inline void look_where(bool wanted, const float* at, uint4& v) {
  asm volatile("{.reg .pred p;\n setp.ne.b32 p, %5, 0;\n@p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
               : "l"(at), "r"(int(wanted))
               : "memory");
}
__device__ inline unsigned look1(const float* at) {
  unsigned v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}
__device__ inline void show(float* at, unsigned bits) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(bits) : "memory");
}
__device__ inline void pause() {}
__device__ inline unsigned arrivals(const unsigned* at) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}
#endif

// Waiting ends in any case: an error is better than a device that hangs.
struct Patience {
  int left = 1 << 27;
  __device__ void wait() {
    pause();
#if defined(__CUDA_ARCH__)
    if (--left == 0) __trap();
#endif
  }
};

__device__ inline void put(float* at, float v, unsigned tag) { show(at, (__float_as_uint(v) & ~1u) | tag); }
__device__ inline bool ready(const uint4& v, unsigned tag) {
  return (((v.x ^ tag) | (v.y ^ tag) | (v.z ^ tag) | (v.w ^ tag)) & 1) == 0;
}
__device__ inline float4 floats_of(const uint4& v) {
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
__device__ inline float4 get4(const float* at, unsigned tag) {
  Patience patience;
  uint4 v = look(at);
  while (!ready(v, tag)) patience.wait(), v = look(at);
  return floats_of(v);
}
__device__ inline float get(const float* at, unsigned tag) {
  Patience patience;
  unsigned v = look1(at);
  while ((v ^ tag) & 1) patience.wait(), v = look1(at);
  return __uint_as_float(v);
}

// All blocks have come here, and what they wrote before can be read.
__device__ inline void meet_all(unsigned* arrived) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    Patience patience;
    atomicAdd(arrived, 1u);
    while (arrivals(arrived) < gridDim.x) patience.wait();
    __threadfence();
  }
  __syncthreads();
}
// The last block to come leaves the counters as they were.
__device__ inline void leave_all(unsigned* arrived) {
  if (threadIdx.x > 0 || atomicAdd(arrived + 1, 1u) + 1 < gridDim.x) return;
  arrived[0] = arrived[1] = 0;
}

__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) v += __shfl_xor_sync(kWholeWarp, v, mask);
  return v;
}

template <class F>
struct Half {
  using Of = KvBF16;
  static constexpr bool kScaled = false;
};
template <>
struct Half<F16> {
  using Of = KvF16;
  static constexpr bool kScaled = true;
};

// Where gather() puts numbers: as two 16-bit numbers each, whose sum has float32's digits but the last few (the low
// ones are what rounding takes away), sixteen of the high ones, then the low ones of these, in the order of an operand
// of a matrix product; and as they are, or not.
struct Vector {
  uint32_t* pairs;  ///< [n]
  float* plain;     ///< [n], or null
};
// Of a block: sums and largest of the numbers that gather() has read, a warp each.
struct OfWarps {
  float squares[kWarps], largest[kWarps], rated[kWarps];
};

// How long who waits does not look, in nanoseconds: at first, and each time. Looks take their share of the L2 from what
// is waited for.
struct Rest {
  unsigned first = 0, each = 0;
  __device__ void take([[maybe_unused]] unsigned time) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    if (time > 0) __nanosleep(time);
#endif
  }
};

template <int kHeld>
__device__ void look_at(const float* from, int base, int n, unsigned tag, Rest rest, uint4 (&v)[kHeld]) {
  // Numbers that are not wanted are as if they were there.
#pragma unroll
  for (int j = 0; j < kHeld; ++j) v[j] = make_uint4(tag, tag, tag, base + 4 * kThreads * j < n ? ~tag : tag);
  Patience patience;
  for (bool some = true; some;) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) look_where(!ready(v[j], tag), from + base + 4 * kThreads * j, v[j]);
    some = false;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) some |= !ready(v[j], tag);
    if (some) patience.wait(), rest.take(rest.each);
  }
}

// A power of two that the numbers, once there, are to be multiplied by.
__device__ inline float range_of_all(const float* from, int n, const float* weight, unsigned tag, OfWarps& of_warps) {
  const int tid = int(threadIdx.x);
  float largest = 0;
#pragma unroll 1
  for (int i = 4 * tid; i < n; i += 4 * kThreads) {
    uint4 v[1];
    look_at<1>(from, i, i + 1, tag, {}, v);
    float4 x = floats_of(v[0]), w = make_float4(1.f, 1.f, 1.f, 1.f);
    if (weight) w = __ldg(reinterpret_cast<const float4*>(weight + i));
    largest = fmaxf(fmaxf(largest, fabsf(x.x * w.x)), fabsf(x.y * w.y));
    largest = fmaxf(fmaxf(largest, fabsf(x.z * w.z)), fabsf(x.w * w.w));
  }
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, mask));
  if (tid % kLanes == 0) of_warps.largest[tid / kLanes] = largest;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, of_warps.largest[i]);
  return range_factor(largest);
}

// Numbers of the exchange to shared memory, times `weight` where there is one, and times a power of two (float16's
// range is small). Returns what products are to be multiplied by. n: a multiple of 16. see(j, first, i, x): numbers i
// to i + 3, a thread's j-th four, or later ones; at_end(): by all threads, before others may read.
template <class F, class See, class AtEnd>
__device__ float gather(const Vector& to, const float* from, int n, const float* weight, unsigned tag, Rest rest,
                        OfWarps& of_warps, See see, AtEnd at_end) {
  using H = typename Half<F>::Of;
  constexpr int kHeld = 4;
  const int tid = int(threadIdx.x);
  float sum = 0, range = 1.f;
  __syncthreads();  // the vector before this one has been read
  rest.take(rest.first);
  if (Half<F>::kScaled) range = range_of_all(from, n, weight, tag, of_warps);
#pragma unroll 1
  for (int base = 4 * tid; base < n; base += 4 * kThreads * kHeld) {
    float4 w[kHeld];
    uint4 v[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = base + 4 * kThreads * j;
      w[j] = make_float4(1.f, 1.f, 1.f, 1.f);
      if (weight && i < n) w[j] = __ldg(reinterpret_cast<const float4*>(weight + i));
    }
    look_at<kHeld>(from, base, n, tag, rest, v);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = base + 4 * kThreads * j;
      if (i >= n) continue;
      float4 x = floats_of(v[j]);
      sum = fmaf(x.x, x.x, sum), sum = fmaf(x.y, x.y, sum), sum = fmaf(x.z, x.z, sum), sum = fmaf(x.w, x.w, sum);
      x = make_float4(x.x * w[j].x, x.y * w[j].y, x.z * w[j].z, x.w * w[j].w);
      if (to.plain) *reinterpret_cast<float4*>(to.plain + i) = x;
      see(j, base == 4 * tid, i, x);
      x = make_float4(x.x * range, x.y * range, x.z * range, x.w * range);
      const uint32_t high[2] = {H::pack(x.x, x.y), H::pack(x.z, x.w)};
      const float2 a = H::unpack(high[0]), b = H::unpack(high[1]);
      const uint32_t low[2] = {H::pack(x.x - a.x, x.y - a.y), H::pack(x.z - b.x, x.w - b.y)};
      // Pair q of sixteen columns: at 2 (q % 4) + q / 4.
      uint32_t* at = to.pairs + i / 16 * 16 + i % 8 + i % 16 / 8;
      at[0] = high[0], at[2] = high[1], at[8] = low[0], at[10] = low[1];
    }
  }
  sum = warp_sum(sum);
  if (tid % kLanes == 0) of_warps.squares[tid / kLanes] = sum;
  at_end();
  __syncthreads();
  return 1.f / range;
}

__device__ inline float inverse_rms_of(const float* squares, int n, float eps) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += squares[i];
  return 1.f / sqrtf(sum / float(n) + eps);
}

}  // namespace ef::cuda::stay
