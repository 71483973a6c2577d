// Blocks of 32 on their way into tensor cores: two a step. Widths need not fill the last step, and what is beyond them
// becomes zeros.
#include "gemm.cuh"

namespace ef::cuda {
namespace {

template <class F, class Row>
__device__ auto block_of(const Row& row, int step, int g) {
  return row.data + (2 * int64_t(step) + g) * F::kBytes;
}

// Codes of four bits: low nibbles are octets 0 and 1, high nibbles 2 and 3. How formats differ: where the codes are,
// a fifth bit, what a code means, and a minimum or none.
enum class Code : uint8_t { kWhole, kIQ4 };
template <class F, int kAlign, int kAt, int kZero, int kFifthAt = -1, bool kMinimum = false, Code kCode = Code::kWhole>
struct NibblePiece {
  static constexpr int kLift = kWeightLift;
  static constexpr bool kBrain = false;
  EightBytes<kAlign> four[2];
  uint32_t d[2], fifth[2];

  static __device__ int64_t group(int step, int g) { return 2 * int64_t(step) + g; }
  template <class Row>
  __device__ void load(const Row& row, int step, int t, int64_t cols, const NibblePiece&) {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      if (32 * group(step, g) >= cols) {
        four[g].clear(), d[g] = fifth[g] = 0;
        continue;
      }
      const auto b = block_of<F>(row, step, g);
      four[g].load(b + kAt + 8 * (t % 2));
      d[g] = kMinimum ? weight4(b) : weight2(b);
      if constexpr (kFifthAt >= 0) fifth[g] = weight1(b + kFifthAt + t);
    }
  }
  __device__ void prepare(int, int) {}
  template <class Row>
  __device__ void halves(const Row& row, int step, int g, int t, uint32_t (&out)[4]) const {
    const __half2 factor = lifted(lower_twice(d[g]));
    uint32_t w[2];
    four[g].get(block_of<F>(row, step, g) + kAt, w);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t q = w[i] >> (4 * (t / 2)) & 0x0f0f0f0fu;
      // Four bits to the fourth bits of four bytes.
      if constexpr (kFifthAt >= 0) q |= ((fifth[g] >> (4 * i) & 15) * 0x00204081u & 0x01010101u) << 4;
      if constexpr (kCode == Code::kIQ4) q = look_up(kIQ4Over128, q);
      if constexpr (kMinimum) {
        const __half2 minimum = lifted(upper_twice(d[g]));
#pragma unroll
        for (int j = 0; j < 2; ++j)
          out[2 * i + j] = bits_of(__hfma2(__hsub2(bytes_over_1024(q, j), twice(1024.f)), factor, minimum));
      } else {
        scaled_bytes(q, float(kZero), factor, out + 2 * i);
      }
    }
  }
};

}  // namespace

template <>
struct Piece<Q4_0> : NibblePiece<Q4_0, 2, 2, 8> {};
template <>
struct Piece<Q4_1> : NibblePiece<Q4_1, 4, 4, 0, -1, true> {};
template <>
struct Piece<Q5_0> : NibblePiece<Q5_0, 2, 6, 16, 2> {};
template <>
struct Piece<Q5_1> : NibblePiece<Q5_1, 4, 8, 0, 4, true> {};
template <>
struct Piece<IQ4NL> : NibblePiece<IQ4NL, 2, 2, 128, -1, false, Code::kIQ4> {};

template <>
struct Piece<Q8_0> {
  static constexpr int kLift = kWeightLift;
  static constexpr bool kBrain = false;
  EightBytes<2> bytes[2];
  uint32_t d[2];

  static __device__ int64_t group(int step, int g) { return 2 * int64_t(step) + g; }
  template <class Row>
  __device__ void load(const Row& row, int step, int t, int64_t cols, const Piece&) {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      if (32 * group(step, g) >= cols) {
        bytes[g].clear(), d[g] = 0;
        continue;
      }
      const auto b = block_of<Q8_0>(row, step, g);
      bytes[g].load(b + 2 + 8 * t), d[g] = weight2(b);
    }
  }
  __device__ void prepare(int, int) {}
  template <class Row>
  __device__ void halves(const Row& row, int step, int g, int, uint32_t (&out)[4]) const {
    const __half2 factor = lifted(lower_twice(d[g]));
    uint32_t w[2];
    bytes[g].get(block_of<Q8_0>(row, step, g) + 2, w);
#pragma unroll
    for (int i = 0; i < 2; ++i) scaled_bytes(w[i] ^ 0x80808080u, 128.f, factor, out + 2 * i);
  }
};

// Codes are sign, two bits of exponent, one of mantissa: in the places of a half's, times 2^14, they are the number.
template <>
struct Piece<MXFP4> {
  static constexpr int kLift = kWeightLift;
  static constexpr bool kBrain = false;
  EightBytes<1> four[2];
  uint32_t e[2];

  static __device__ int64_t group(int step, int g) { return 2 * int64_t(step) + g; }
  template <class Row>
  __device__ void load(const Row& row, int step, int t, int64_t cols, const Piece&) {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      if (32 * group(step, g) >= cols) {
        four[g].clear(), e[g] = 0;
        continue;
      }
      const auto b = block_of<MXFP4>(row, step, g);
      four[g].load(b + 1 + 8 * (t % 2)), e[g] = weight1(b);
    }
  }
  __device__ void prepare(int, int) {}
  template <class Row>
  __device__ void halves(const Row& row, int step, int g, int t, uint32_t (&out)[4]) const {
    // 2^-127 (e = 0) is zero among halves, as most that is small.
    const __half2 factor = twice(__uint_as_float(e[g] << 23) * float(1 << kWeightLift));
    uint32_t w[2];
    four[g].get(block_of<MXFP4>(row, step, g) + 1, w);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t q = w[i] >> (4 * (t / 2)) & 0x0f0f0f0fu;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t two = __byte_perm(q, 0, j ? 0x4342 : 0x4140);
        const uint32_t bits = (two << 12 & 0x80008000u) | (two << 9 & 0x0e000e00u);
        out[2 * i + j] = bits_of(__hmul2(__hmul2(half2_of(bits), twice(0x1p14f)), factor));
      }
    }
  }
};

cudaError_t gemm_block32(Fmt format, const GemmTask& p, cudaStream_t stream) {
  switch (format) {
    case Fmt::kQ8_0:
      return launch_gemm<Q8_0>(p, stream);
    case Fmt::kQ4_0:
      return launch_gemm<Q4_0>(p, stream);
    case Fmt::kQ4_1:
      return launch_gemm<Q4_1>(p, stream);
    case Fmt::kQ5_0:
      return launch_gemm<Q5_0>(p, stream);
    case Fmt::kQ5_1:
      return launch_gemm<Q5_1>(p, stream);
    case Fmt::kIQ4NL:
      return launch_gemm<IQ4NL>(p, stream);
    case Fmt::kMXFP4:
      return launch_gemm<MXFP4>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ef::cuda
