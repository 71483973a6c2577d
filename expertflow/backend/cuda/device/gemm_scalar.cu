// Formats without blocks on their way into tensor cores: any width, rows at any address that an element may have.
#include "gemm.cuh"

namespace ef::cuda {
namespace {

// Octets of 16-bit elements as they are stored.
template <class F>
struct Words16 {
  uint32_t pairs[2][4];

  static __device__ int64_t group(int step, int g) { return 2 * int64_t(step) + g; }
  template <class Row>
  __device__ void load(const Row& row, int step, int t, int64_t cols, const Words16&) {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int64_t c = 8 * (4 * group(step, g) + t);
      const auto p = row.data + 2 * c;
      if (c + 8 <= cols && address_of(p) % 16 == 0) {
        const uint4 v = weight16(p);
        pairs[g][0] = v.x, pairs[g][1] = v.y, pairs[g][2] = v.z, pairs[g][3] = v.w;
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          pairs[g][j] =
              (c + 2 * j < cols ? weight2(p + 4 * j) : 0) | (c + 2 * j + 1 < cols ? weight2(p + 4 * j + 2) << 16 : 0);
      }
    }
  }
  __device__ void prepare(int, int) {}
};

}  // namespace

template <>
struct Piece<F16> : Words16<F16> {
  static constexpr int kLift = 0;
  static constexpr bool kBrain = false;
  template <class Row>
  __device__ void halves(const Row&, int, int g, int, uint32_t (&out)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = pairs[g][j];
  }
};

template <>
struct Piece<BF16> : Words16<BF16> {
  static constexpr int kLift = kBrainProducts ? 0 : kWeightLift;
  static constexpr bool kBrain = kBrainProducts;
  template <class Row>
  __device__ void halves(const Row&, int, int g, int, uint32_t (&out)[4]) const {
    constexpr float kFactor = float(1 << kLift);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t two = pairs[g][j];
      out[j] =
          kBrain ? two : pair_of(__uint_as_float(two << 16) * kFactor, __uint_as_float(two & 0xffff0000u) * kFactor);
    }
  }
};

// E4M3: a code's exponent and mantissa in the places of a half's, times 2^8, are the number; NaN alone is not.
template <>
struct Piece<F8> {
  static constexpr int kLift = kWeightLift;
  static constexpr bool kBrain = false;
  uint32_t bytes[2][2];
  float factor;  // of the 128 columns that the step is in

  static __device__ int64_t group(int step, int g) { return 2 * int64_t(step) + g; }
  template <class Row>
  __device__ void load(const Row& row, int step, int t, int64_t cols, const Piece&) {
    factor = row.scales ? __ldg(row.scales + step / 2) : 1.f;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int64_t c = 8 * (4 * group(step, g) + t);
      const auto p = row.data + c;
      if (c + 8 <= cols && address_of(p) % 8 == 0) {
        const uint2 v = weight8(p);
        bytes[g][0] = v.x, bytes[g][1] = v.y;
      } else {
        bytes[g][0] = bytes[g][1] = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (c + i < cols) bytes[g][i / 4] |= weight1(p + i) << (8 * (i % 4));
      }
    }
  }
  __device__ void prepare(int, int) {}
  template <class Row>
  __device__ void halves(const Row&, int, int g, int, uint32_t (&out)[4]) const {
    const __half2 scale = twice(factor * float(256 << kLift));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t w = bytes[g][i];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t two = __byte_perm(w, 0, j ? 0x3424 : 0x1404);  // bytes in the upper halves
        uint32_t bits = (two & 0x80008000u) | (two >> 1 & 0x3f803f80u);
        if ((two & 0x7f00u) == 0x7f00u) bits |= 0x7e00u;
        if ((two & 0x7f000000u) == 0x7f000000u) bits |= 0x7e000000u;
        out[2 * i + j] = bits_of(__hmul2(half2_of(bits), scale));
      }
    }
  }
};

cudaError_t gemm_scalar(Fmt format, const GemmTask& p, cudaStream_t stream) {
  switch (format) {
    case Fmt::kF32:
      return launch_gemm<F32>(p, stream);
    case Fmt::kF16:
      return launch_gemm<F16>(p, stream);
    case Fmt::kBF16:
      return launch_gemm<BF16>(p, stream);
    case Fmt::kF8E4M3:
      return launch_gemm<F8>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ef::cuda
