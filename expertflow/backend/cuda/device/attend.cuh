// What the kernels of attend() share: the two 16-bit types of keys and values as tensor cores take them, what a head
// goes through before it is used, and how the work is cut. The softmax is in powers of two: factors carry log2(e).
#pragma once
#include <cstring>

#include "fast.h"
#include "mma.cuh"

namespace ef::cuda {

constexpr float kLog2E = 1.4426950408889634f;
constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kPad = 8;  // 16-bit elements behind a row in shared memory: eight rows then lie in different banks

// The same bits as another type.
template <class To, class From>
__device__ To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

struct KvF16 {
  using T = __half;
  static __device__ T put(float v) { return __float2half_rn(v); }
  static __device__ uint32_t pack(float a, float b) { return bits_as<uint32_t>(__floats2half2_rn(a, b)); }
  static __device__ float2 unpack(uint32_t v) { return __half22float2(bits_as<__half2>(v)); }
  static __device__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_f16(d, a, b); }
};
struct KvBF16 {
  using T = __nv_bfloat16;
  static __device__ T put(float v) { return __float2bfloat16_rn(v); }
  static __device__ uint32_t pack(float a, float b) { return bits_as<uint32_t>(__floats2bfloat162_rn(a, b)); }
  static __device__ float2 unpack(uint32_t v) { return __bfloat1622float2(bits_as<__nv_bfloat162>(v)); }
  static __device__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { mma_bf16(d, a, b); }
};

__device__ inline float power_of_two(float x) {
#ifdef EF_CUDA_EMULATED
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Where a position of a sequence lies, in tokens of the pool (fewer than 2^31).
__device__ inline int place_of(const KvParams& kv, const int32_t* table, int position) {
  return table[position / kv.block_tokens] * kv.block_tokens + position % kv.block_tokens;
}
__device__ inline int first_visible(int position, int window) { return window > 0 ? max(0, position - window + 1) : 0; }

// A power of two that brings numbers of at most `largest` near 2^10: float16 then holds what float32 does.
__device__ inline float range_factor(float largest) {
  const int exponent = __float_as_int(largest) >> 23 & 255;
  return __int_as_float(min(max(264 - exponent, 1), 254) << 23);
}

// The functions below are a head's, by kLanes lanes of a warp. The whole warp calls them: n is 0 where lanes have no
// head.
template <int kLanes>
__device__ float inverse_rms(const float* x, int n, int lane, float eps) {
  float sum = 0;
  for (int i = lane; i < n; i += kLanes) sum = fmaf(x[i], x[i], sum);
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, mask);
  return 1.f / sqrtf(sum / float(max(n, 1)) + eps);
}

template <int kLanes>
__device__ float largest_magnitude(const float* x, int n, int lane) {
  float largest = 0;
  for (int i = lane; i < n; i += kLanes) largest = fmaxf(largest, fabsf(x[i]));
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, mask));
  return largest;
}

// Norm (with weights), clip, and the rotation of `pairs` pairs, in place. x is shared memory.
template <int kLanes>
__device__ void finish_head(const AttendParams& p, const float* weight, float inverse, const float* cos,
                            const float* sin, int pairs, int n, int lane, float* x) {
  for (int i = lane; i < n; i += kLanes) {
    float v = x[i];
    if (weight) v = v * inverse * weight[i];
    // Written so that a NaN stays.
    if (p.clip > 0) v = v < -p.clip ? -p.clip : v > p.clip ? p.clip : v;
    x[i] = v;
  }
  __syncwarp();
  if (n == 0) pairs = 0;
  float* rotated = x + p.rope_offset;
  for (int i = lane; i < pairs; i += kLanes) {
    float& first = p.interleaved ? rotated[2 * i] : rotated[i];
    float& second = p.interleaved ? rotated[2 * i + 1] : rotated[i + pairs];
    const float u = first, v = second;
    first = u * cos[i] - v * sin[i];
    second = v * cos[i] + u * sin[i];
  }
  __syncwarp();
}

// 1 / rms of a whole row, by all threads of the block; partial: a float a warp, free before and after.
__device__ inline float inverse_rms_of_row(const float* x, int width, float eps, float* partial) {
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, mask);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += partial[i];
  __syncthreads();
  return 1.f / sqrtf(sum / float(width) + eps);
}

template <int kKeys, int kValues>
struct HeadDims {
  static constexpr int kK = kKeys, kV = kValues;
};
// run(HeadDims<k, v>) for the dimensions that have kernels; false for others.
template <class F>
bool with_dims(int k_dim, int v_dim, F run) {
  if (k_dim == 192 && v_dim == 128) return run(HeadDims<192, 128>{}), true;
  if (k_dim != v_dim) return false;
  switch (k_dim) {
    case 16:
      return run(HeadDims<16, 16>{}), true;
    case 32:
      return run(HeadDims<32, 32>{}), true;
    case 64:
      return run(HeadDims<64, 64>{}), true;
    case 80:
      return run(HeadDims<80, 80>{}), true;
    case 96:
      return run(HeadDims<96, 96>{}), true;
    case 128:
      return run(HeadDims<128, 128>{}), true;
    case 256:
      return run(HeadDims<256, 256>{}), true;
    default:
      return false;
  }
}

// Positions of a piece: the same for all pieces of a row but the last.
__device__ inline int piece_length(int count, int splits, int step) {
  const int even = (count + splits - 1) / splits;
  return (even + step - 1) / step * step;
}

// What the pieces of a unit (a row and some of its heads) leave in scratch.
struct Pieces {
  float* sums;     ///< [pieces, heads, v_dim], weighted values
  float2* totals;  ///< [pieces, heads], largest score and sum of weights
};
__device__ inline Pieces pieces_of(const AttendParams& p, int64_t unit, int64_t units, int splits, int heads) {
  const int64_t of_unit = int64_t(splits) * heads;
  float* all = static_cast<float*>(p.scratch);
  return {all + unit * of_unit * p.kv.v_dim,
          reinterpret_cast<float2*>(all + units * of_unit * p.kv.v_dim) + unit * of_unit};
}

// Decoding: a row's visible positions in pieces, a block each for up to kDecodeHeads heads of a key head.
constexpr int kDecodeHeads = 8;
constexpr int kTile = 16;                  // positions that a warp takes at once
constexpr int kDecodeThreads = 128;        // at most
constexpr size_t kDecodeStatic = 1 << 10;  // bytes of shared memory, more than there are beside DecodeShared's

template <class Dims>
struct DecodeShared {
  static constexpr int kKeyStride = Dims::kK + kPad, kValueStride = Dims::kV + kPad;  // 16-bit elements
  static constexpr int kStage = kTile * (kKeyStride + kValueStride);                  // of them
  static constexpr int kHeadStride = Dims::kK + kPad;                                 // floats
  static constexpr int kOutStride = Dims::kV + kPad;                                  // floats
  static_assert(Dims::kV <= Dims::kK && kDecodeHeads * kOutStride * 4 <= 2 * kStage * 2, "sums take a warp's stages");
  static constexpr size_t bytes(int warps) {
    return size_t(warps) * 2 * kStage * 2                                            // stages
           + size_t(2 * kDecodeHeads) * kKeyStride * 2                               // query
           + size_t(Dims::kK + Dims::kV) * 2                                         // new key and value
           + size_t(kDecodeHeads + 2) * kHeadStride * 4 + size_t(3) * Dims::kK * 4;  // heads; weights, cos and sin
  }
};

struct DecodePlan {
  int warps = 0;              ///< of a block
  int chunk = 0, chunks = 0;  ///< heads of a block, and blocks for the heads of a key head
  int splits = 0;             ///< at most, of a row
  bool new_in_input = false;  ///< the row's own key and value are in k and v, and are stored; else in the cache
  size_t shared = 0;
};
template <class Kv>
cudaError_t attend_decode(const AttendParams&, const DecodePlan&, cudaStream_t);

// Latent attention: pieces of a row's positions, a block each for up to kLatentHeads heads.
constexpr int kLatentThreads = 256, kLatentHeads = 16;
constexpr int kLatentPieces = 256;         // at most, of a row
constexpr int kLatentKeys = 32;            // of a tile
constexpr size_t kLatentStatic = 1 << 10;  // bytes of shared memory, more than there are beside LatentShared's

template <class Dims>
struct LatentShared {
  static constexpr int kKeyStride = Dims::kK + kPad, kWeightStride = kLatentKeys + kPad;  // 16-bit elements
  static constexpr int kStage = kLatentKeys * kKeyStride;                                 // of them
  static constexpr int kScoreStride = kLatentKeys + 8;                                    // floats
  static constexpr size_t bytes() {
    return size_t(2 * kStage + 2 * kLatentHeads * (kKeyStride + kWeightStride) + Dims::kK) * 2 +
           size_t(kLatentThreads / 64 * kLatentHeads) * kScoreStride * 4;
  }
};
template <class F>
bool with_latent_dims(int k_dim, int v_dim, F run) {
  if (k_dim == 576 && v_dim == 512) return run(HeadDims<576, 512>{}), true;
  if (k_dim == 48 && v_dim == 32) return run(HeadDims<48, 32>{}), true;
  return false;
}

struct LatentPlan {
  int chunks = 0;             ///< blocks for all heads
  int splits = 0;             ///< at most, of a row
  bool new_in_input = false;  ///< as in DecodePlan
  size_t shared = 0;
};
template <class Kv>
cudaError_t attend_latent(const AttendParams&, const LatentPlan&, cudaStream_t);

// Many rows: blocks of kPrefillRows queries, tokens times heads.
constexpr int kPrefillThreads = 256, kPrefillRows = kPrefillThreads / 32 * 16;
constexpr size_t kPrefillStatic = 4 << 10;  // bytes of shared memory, more than there are beside PrefillShared's

template <class Dims>
struct PrefillShared {
  static constexpr bool kKeep = Dims::kK <= 128;                     // queries stay in registers
  static constexpr int kKeys = Dims::kK + Dims::kV > 320 ? 32 : 64;  // of a tile
  static constexpr int kKeyStride = Dims::kK + kPad, kValueStride = Dims::kV + kPad;
  static constexpr int kStage = kKeys * (kKeyStride + kValueStride);  // 16-bit elements
  static constexpr int kQueries = kKeep ? kStage : 2 * kStage;        // where they begin
  static constexpr int kAll = kQueries + kPrefillRows * kKeyStride;
  static constexpr size_t bytes() { return size_t(kAll > 2 * kStage ? kAll : 2 * kStage) * 2; }
};

struct PrefillPlan {
  int chunk = 0, chunks = 0;  ///< heads of a block, and blocks for the heads of a key head
  int tokens = 0;             ///< of a block
  int splits = 1;             ///< of a block's keys
  size_t shared = 0;
};
template <class Kv>
cudaError_t attend_prefill(const AttendParams&, const PrefillPlan&, cudaStream_t);

/// What becomes of q: left, made ready in place, or made ready as 16-bit numbers in the first half of each head's
/// place, times a power of two whose inverse follows them.
enum class QueryForm : uint8_t { kLeft, kFloat, kHalf };
cudaError_t attend_heads(const AttendParams&, QueryForm, cudaStream_t);

}  // namespace ef::cuda
