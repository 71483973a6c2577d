// Super-blocks of 256 on their way into tensor cores: four steps each.
#include "gemm.cuh"

namespace ef::cuda {
namespace {

// Q4_K and Q5_K: a step is two groups of 32, low and high nibbles of the same 32 bytes. w = d * (scale * q) - dmin *
// minimum, where scale * q is whole and below 2048, so exact.
template <class F, bool kFifth>
struct KPiece {
  static constexpr int kLift = kWeightLift;
  static constexpr bool kBrain = false;
  EightBytes<8> four, fifth;
  uint32_t head;       // word t of d, dmin and the packed scales
  uint32_t d, scales;  // d and dmin; scales of the two groups, and minimums

  static __device__ int64_t group(int step, int g) { return 2 * int64_t(step) + g; }
  template <class Row>
  __device__ void load(const Row& row, int step, int t, int64_t, const KPiece& before) {
    const auto b = row.data + step / 4 * int64_t(F::kBytes);
    if (step % 4 == 0) {
      head = weight4(b + 4 * t);
      if constexpr (kFifth) fifth.load(b + 16 + 8 * t);
    } else {
      head = before.head, fifth = before.fifth;
    }
    four.load(b + (kFifth ? 48 : 16) + 32 * (step % 4) + 8 * t);
  }
  __device__ void prepare(int step, int) {
    d = __shfl_sync(0xffffffffu, head, 0, 4);
    const int j = step % 4, shift = 16 * (j % 2);
    const uint32_t a = __shfl_sync(0xffffffffu, head, 1, 4) >> shift, b = __shfl_sync(0xffffffffu, head, 2, 4) >> shift,
                   c = __shfl_sync(0xffffffffu, head, 3, 4) >> shift;
    const uint32_t scale = j < 2 ? a & 0x3f3fu : (c & 0x0f0fu) | (a >> 2 & 0x3030u);
    const uint32_t minimum = j < 2 ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u);
    scales = scale | minimum << 16;
  }
  template <class Row>
  __device__ void halves(const Row&, int step, int g, int, uint32_t (&out)[4]) const {
    const __half2 scale = __hsub2(byte_over_1024(scales, g), twice(1024.f)), down = __hmul2(scale, twice(-1024.f));
    const __half2 minimum = __hsub2(byte_over_1024(scales, 2 + g), twice(1024.f));
    const __half2 factor = lifted(lower_twice(d)), offset = __hneg2(__hmul2(minimum, lifted(upper_twice(d))));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t q = four.w[i] >> (4 * g) & 0x0f0f0f0fu;
      if constexpr (kFifth) q |= (fifth.w[i] >> (2 * (step % 4) + g) & 0x01010101u) << 4;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        out[2 * i + j] = bits_of(__hfma2(__hfma2(bytes_over_1024(q, j), scale, down), factor, offset));
    }
  }
};

template <class F, bool kFifth>
struct KCodes {
  static constexpr bool kExist = true;
  float scale[2], offset[2];  // of groups 2t and 2t + 1 of the block
  EightBytes<8> four, fifth;

  __device__ void begin(SharedBytes b, int t) {
    const float2 d = __half22float2(half2_of(weight4(b)));
    const int shift = 16 * (t % 2);
    const uint32_t low = weight4(b + 4) >> shift, down = weight4(b + 8) >> shift, rest = weight4(b + 12) >> shift;
    const uint32_t scales = t < 2 ? low & 0x3f3fu : (rest & 0x0f0fu) | (low >> 2 & 0x3030u);
    const uint32_t minimums = t < 2 ? down & 0x3f3fu : (rest >> 4 & 0x0f0fu) | (down >> 2 & 0x3030u);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      scale[g] = d.x * float(scales >> (8 * g) & 255);
      offset[g] = -fmaf(1024.f, scale[g], d.y * float(minimums >> (8 * g) & 255));
    }
    if constexpr (kFifth) fifth.load(b + 16 + 8 * t);
  }
  __device__ void load(SharedBytes b, int step, int t) { four.load(b + (kFifth ? 48 : 16) + 32 * step + 8 * t); }
  // Codes over 1024.
  __device__ void get(int step, int g, uint32_t (&out)[4], float& scale_of, float& offset_of) const {
    scale_of = __shfl_sync(0xffffffffu, scale[g], step, 4), offset_of = __shfl_sync(0xffffffffu, offset[g], step, 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t q = four.w[i] >> (4 * g) & 0x0f0f0f0fu;
      if constexpr (kFifth) q |= (fifth.w[i] >> (2 * step + g) & 0x01010101u) << 4;
#pragma unroll
      for (int j = 0; j < 2; ++j) out[2 * i + j] = bits_of(bytes_over_1024(q, j));
    }
  }
};

}  // namespace

template <>
struct Codes<Q4K> : KCodes<Q4K, false> {};
template <>
struct Codes<Q5K> : KCodes<Q5K, true> {};

template <>
struct Piece<Q4K> : KPiece<Q4K, false> {};
template <>
struct Piece<Q5K> : KPiece<Q5K, true> {};

// A step takes the groups whose bits share bytes: low and high nibbles of the same 32 bytes, 64 columns apart.
template <>
struct Piece<Q6K> {
  static constexpr int kLift = kWeightLift;
  static constexpr bool kBrain = false;
  EightBytes<2> low, high;
  uint32_t codes[2], d;  // codes: of scales 4t to 4t + 3 of the block
  uint32_t scale[2];     // of the step's groups

  static __device__ int64_t group(int step, int g) { return 4 * int64_t(step / 2) + step % 2 + 2 * g; }
  template <class Row>
  __device__ void load(const Row& row, int step, int t, int64_t, const Piece& before) {
    const auto b = row.data + step / 4 * int64_t(Q6K::kBytes);
    const int half = step / 2 % 2, part = step % 2;
    if (step % 4 == 0) {
      codes[0] = weight2(b + 192 + 4 * t), codes[1] = weight2(b + 194 + 4 * t), d = weight2(b + 208);
    } else {
      codes[0] = before.codes[0], codes[1] = before.codes[1], d = before.d;
    }
    if (part == 0)
      high.load(b + 128 + 32 * half + 8 * t);
    else
      high = before.high;
    low.load(b + 64 * half + 32 * part + 8 * t);
  }
  __device__ void prepare(int step, int t) {
    // Scale 8 half + 2 part + 4 g + t / 2.
    const int half = step / 2 % 2, part = step % 2;
#pragma unroll
    for (int g = 0; g < 2; ++g)
      scale[g] = __shfl_sync(0xffffffffu, part == 0 ? codes[0] : codes[1], 2 * half + g, 4) >> (8 * (t / 2)) & 255;
  }
  template <class Row>
  __device__ void halves(const Row& row, int step, int g, int, uint32_t (&out)[4]) const {
    const __half2 code = __hsub2(byte_over_1024(scale[g] ^ 0x80u, 0), twice(1024.f + 128.f));
    const __half2 factor = __hmul2(code, lifted(lower_twice(d)));
    const auto b = row.data + step / 4 * int64_t(Q6K::kBytes);  // its fields are multiples of 4 away
    uint32_t l[2], h[2];
    low.get(b, l), high.get(b, h);
    const int shift = 2 * (step % 2) + 4 * g;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      scaled_bytes((l[i] >> (4 * g) & 0x0f0f0f0fu) | (h[i] >> shift & 0x03030303u) << 4, 32.f, factor, out + 2 * i);
  }
};

template <>
struct Piece<Q2K> {
  static constexpr int kLift = kWeightLift;
  static constexpr bool kBrain = false;
  EightBytes<4> two;
  uint32_t scales, d;  // of the step's four groups of 16; d and dmin

  static __device__ int64_t group(int step, int g) { return 2 * int64_t(step) + g; }
  template <class Row>
  __device__ void load(const Row& row, int step, int t, int64_t, const Piece&) {
    const auto b = row.data + step / 4 * int64_t(Q2K::kBytes);
    two.load(b + 16 + 32 * (step % 4 / 2) + 8 * t);
    scales = weight4(b + 4 * (step % 4)), d = weight4(b + 80);
  }
  __device__ void prepare(int, int) {}
  template <class Row>
  __device__ void halves(const Row&, int step, int g, int t, uint32_t (&out)[4]) const {
    const uint32_t packed = scales >> (8 * (2 * g + t / 2));
    const __half2 scale = __hsub2(byte_over_1024(packed & 15, 0), twice(1024.f)), down = __hmul2(scale, twice(-1024.f));
    const __half2 minimum = __hsub2(byte_over_1024(packed >> 4 & 15, 0), twice(1024.f));
    const __half2 factor = lifted(lower_twice(d)), offset = __hneg2(__hmul2(minimum, lifted(upper_twice(d))));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t q = two.w[i] >> (4 * (step % 2) + 2 * g) & 0x03030303u;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        out[2 * i + j] = bits_of(__hfma2(__hfma2(bytes_over_1024(q, j), scale, down), factor, offset));
    }
  }
};

template <>
struct Piece<Q3K> {
  static constexpr int kLift = kWeightLift;
  static constexpr bool kBrain = false;
  EightBytes<2> two, third;
  uint32_t low[2], high[2], d;  // bits of the scales

  static __device__ int64_t group(int step, int g) { return 2 * int64_t(step) + g; }
  template <class Row>
  __device__ void load(const Row& row, int step, int t, int64_t, const Piece&) {
    const auto b = row.data + step / 4 * int64_t(Q3K::kBytes);
    third.load(b + 8 * t);
    two.load(b + 32 + 32 * (step % 4 / 2) + 8 * t);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      low[g] = weight1(b + 96 + 4 * (step % 2) + 2 * g + t / 2);
      high[g] = weight1(b + 104 + 2 * g + t / 2);
    }
    d = weight2(b + 108);
  }
  __device__ void prepare(int, int) {}
  template <class Row>
  __device__ void halves(const Row& row, int step, int g, int, uint32_t (&out)[4]) const {
    const int s = step % 4;
    const uint32_t packed = (low[g] >> (4 * (s / 2)) & 15) | (high[g] >> (2 * s) & 3) << 4;
    const __half2 code = __hsub2(byte_over_1024(packed, 0), twice(1024.f + 32.f));
    const __half2 factor = __hmul2(code, lifted(lower_twice(d)));
    const auto b = row.data + step / 4 * int64_t(Q3K::kBytes);  // its fields are multiples of 4 away
    uint32_t q[2], bit[2];
    two.get(b, q), third.get(b, bit);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t both = (q[i] >> (4 * (s % 2) + 2 * g) & 0x03030303u) | (bit[i] >> (2 * s + g) & 0x01010101u) << 2;
      scaled_bytes(both, 4.f, factor, out + 2 * i);
    }
  }
};

template <>
struct Piece<IQ4XS> {
  static constexpr int kLift = kWeightLift;
  static constexpr bool kBrain = false;
  EightBytes<4> four[2];
  uint32_t low, head;  // low bits of the step's two scales; d and the high bits of all

  static __device__ int64_t group(int step, int g) { return 2 * int64_t(step) + g; }
  template <class Row>
  __device__ void load(const Row& row, int step, int t, int64_t, const Piece&) {
    const auto b = row.data + step / 4 * int64_t(IQ4XS::kBytes);
#pragma unroll
    for (int g = 0; g < 2; ++g) four[g].load(b + 8 + 16 * (2 * (step % 4) + g) + 8 * (t % 2));
    low = weight1(b + 4 + step % 4), head = weight4(b);
  }
  __device__ void prepare(int, int) {}
  template <class Row>
  __device__ void halves(const Row&, int step, int g, int t, uint32_t (&out)[4]) const {
    const uint32_t packed = (low >> (4 * g) & 15) | (head >> (16 + 2 * (2 * (step % 4) + g)) & 3) << 4;
    const __half2 code = __hsub2(byte_over_1024(packed, 0), twice(1024.f + 32.f));
    const __half2 factor = __hmul2(code, lifted(lower_twice(head)));
#pragma unroll
    for (int i = 0; i < 2; ++i)
      scaled_bytes(look_up(kIQ4Over128, four[g].w[i] >> (4 * (t / 2)) & 0x0f0f0f0fu), 128.f, factor, out + 2 * i);
  }
};

cudaError_t gemm_block256(Fmt format, const GemmTask& p, cudaStream_t stream) {
  switch (format) {
    case Fmt::kQ2K:
      return launch_gemm<Q2K>(p, stream);
    case Fmt::kQ3K:
      return launch_gemm<Q3K>(p, stream);
    case Fmt::kQ4K:
      return launch_gemm<Q4K>(p, stream);
    case Fmt::kQ5K:
      return launch_gemm<Q5K>(p, stream);
    case Fmt::kQ6K:
      return launch_gemm<Q6K>(p, stream);
    case Fmt::kIQ4XS:
      return launch_gemm<IQ4XS>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ef::cuda
