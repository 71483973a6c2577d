// Products of block formats with activations of 8 bits, in integers. One struct a format: a piece is what a lane takes
// at once, and add() adds piece i of a row (`row` points to the row's part in shared memory, at any address that the
// format's block size allows) times piece `at` of the activations. Bits as formats.cuh reads them.
#pragma once
#include "formats.cuh"
#include "shared_rows.cuh"

namespace ef::cuda {

// N words from an address that is a multiple of kAlign, 4 or more.
template <int kAlign, int N>
__device__ void load_words(const uint8_t* p, uint32_t (&out)[N]) {
  if constexpr (kAlign == 16) {
    for (int i = 0; i < N / 4; ++i) {
      const uint4 v = reinterpret_cast<const uint4*>(p)[i];
      out[4 * i] = v.x, out[4 * i + 1] = v.y, out[4 * i + 2] = v.z, out[4 * i + 3] = v.w;
    }
  } else if constexpr (kAlign == 8) {
    for (int i = 0; i < N / 2; ++i) {
      const uint2 v = reinterpret_cast<const uint2*>(p)[i];
      out[2 * i] = v.x, out[2 * i + 1] = v.y;
    }
  } else {
    for (int i = 0; i < N; ++i) out[i] = load4(p + 4 * i);
  }
}

// Words at multiples of 4 bytes from any address. Reads the aligned word behind the last one, too.
struct UnalignedWords {
  __device__ explicit UnalignedWords(const uint8_t* p) {
    const unsigned past = unsigned(reinterpret_cast<uintptr_t>(p) & 3);
    words = p - past, shift = 8 * past;
  }
  template <int N>
  __device__ void load(int offset, uint32_t (&out)[N]) const {
    uint32_t low = load4(words + offset);
    for (int i = 0; i < N; ++i) {
      const uint32_t high = load4(words + offset + 4 * i + 4);
      out[i] = __funnelshift_r(low, high, shift);
      low = high;
    }
  }
  const uint8_t* words;
  unsigned shift;
};

__device__ inline int dot16(const uint32_t* codes, uint4 x, int sum) {
  sum = __dp4a(int(codes[0]), int(x.x), sum);
  sum = __dp4a(int(codes[1]), int(x.y), sum);
  sum = __dp4a(int(codes[2]), int(x.z), sum);
  return __dp4a(int(codes[3]), int(x.w), sum);
}

// The same with codes up to 255.
__device__ inline int dot4_unsigned(uint32_t codes, uint32_t x, int sum) {
#ifdef EF_CUDA_EMULATED
  for (int i = 0; i < 4; ++i) sum += int(byte_of(codes, i)) * int8_t(byte_of(x, i));
#else
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(codes), "r"(x));
#endif
  return sum;
}

// A group of 32 whose first unit of activations lies at `unit`: its numbers are d * code, or d * code + m.
template <int R>
__device__ void add_group(const uint32_t (&codes)[8], float d, const QuantizedRows& x, int group, int unit,
                          float (&acc)[R]) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int sum = dot16(codes + 4, x.unit(r, unit ^ 16), dot16(codes, x.unit(r, unit), 0));
    acc[r] = fmaf(float(sum), d * x.scale(r)[group], acc[r]);
  }
}
template <int R>
__device__ void add_group(const uint32_t (&codes)[8], float d, float m, const QuantizedRows& x, int group, int unit,
                          float (&acc)[R]) {
  add_group(codes, d, x, group, unit, acc);
#pragma unroll
  for (int r = 0; r < R; ++r) acc[r] = fmaf(m, x.sum(r)[group], acc[r]);
}

// One half of each of the four groups of 32 in 128 elements: numbers d[i] * code + m[i].
template <int R>
__device__ void add_halves(const uint32_t (&codes)[16], const float (&d)[4], const float (&m)[4],
                           const QuantizedRows& x, int of_128, int half, float (&acc)[R]) {
  const int first = unit_at(8 * of_128 + half);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const float4 s = reinterpret_cast<const float4*>(x.scale(r))[of_128];
    const float4 t = reinterpret_cast<const float4*>(x.half_sum(r, half))[of_128];
    const float scale[4] = {s.x, s.y, s.z, s.w}, sum[4] = {t.x, t.y, t.z, t.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      acc[r] = fmaf(float(dot16(codes + 4 * i, x.unit(r, first ^ 32 * i), 0)), d[i] * scale[i], acc[r]);
      acc[r] = fmaf(m[i], sum[i], acc[r]);
    }
  }
}

// Codes of 32 elements from 16 bytes: low nibbles first.
__device__ inline void nibbles(const uint32_t* w, uint32_t (&codes)[8]) {
  for (int i = 0; i < 4; ++i) codes[i] = w[i] & 0x0f0f0f0fu, codes[4 + i] = w[i] >> 4 & 0x0f0f0f0fu;
}
// Bits 0 to 3 of v as bit 4 of four bytes.
__device__ inline uint32_t fifth_bits(uint32_t v) { return ((v & 15) * 0x00204081u & 0x01010101u) << 4; }

// A table of 16 signed bytes as words.
struct Values {
  uint32_t word[4];
  // The values of four nibbles, of which only the lower 16 bits count.
  __device__ uint32_t of_four(uint32_t packed) const {
    const uint32_t index = packed & 0x7777u;
    return __byte_perm(__byte_perm(word[0], word[1], index), __byte_perm(word[2], word[3], index),
                       0x3210u | (packed >> 1 & 0x4444u));
  }
  // Like nibbles(), for the four bytes of w.
  __device__ void look_up(uint32_t w, uint32_t& low, uint32_t& high) const {
    const uint32_t first = of_four(w), second = of_four(w >> 16);
    low = __byte_perm(first, second, 0x6420), high = __byte_perm(first, second, 0x7531);
  }
};
__device__ inline Values iq4_values() { return {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}}; }
__device__ inline Values doubled_e2m1_values() { return {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}}; }

struct DotQ8_0 {
  static constexpr int kPiece = 32;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + i * Q8_0::kBytes;
    uint32_t codes[8];
    UnalignedWords(b + 2).load(0, codes);
    add_group(codes, half_at(b), x, at, unit_at(2 * at), acc);
  }
};

struct DotQ4_0 {
  static constexpr int kPiece = 32;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + i * Q4_0::kBytes;
    uint32_t w[4], codes[8];
    UnalignedWords(b + 2).load(0, w);
    nibbles(w, codes);
    const float d = half_at(b);
    add_group(codes, d, -8.f * d, x, at, unit_at(2 * at), acc);
  }
};

struct DotQ4_1 {
  static constexpr int kPiece = 32;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + i * Q4_1::kBytes;
    uint32_t w[4], codes[8];
    load_words<4>(b + 4, w);
    nibbles(w, codes);
    add_group(codes, half_at(b), half_at(b + 2), x, at, unit_at(2 * at), acc);
  }
};

struct DotQ5_0 {
  static constexpr int kPiece = 32;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + i * Q5_0::kBytes;
    uint32_t w[5], codes[8];
    UnalignedWords(b + 2).load(0, w);
    nibbles(w + 1, codes);
    for (int j = 0; j < 8; ++j) codes[j] |= fifth_bits(w[0] >> (4 * j));
    const float d = half_at(b);
    add_group(codes, d, -16.f * d, x, at, unit_at(2 * at), acc);
  }
};

struct DotQ5_1 {
  static constexpr int kPiece = 32;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + i * Q5_1::kBytes;
    uint32_t w[6], codes[8];
    load_words<8>(b, w);
    nibbles(w + 2, codes);
    for (int j = 0; j < 8; ++j) codes[j] |= fifth_bits(w[1] >> (4 * j));
    add_group(codes, half_at(b), half_at(b + 2), x, at, unit_at(2 * at), acc);
  }
};

struct DotIQ4NL {
  static constexpr int kPiece = 32;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + i * IQ4NL::kBytes;
    uint32_t w[4], codes[8];
    UnalignedWords(b + 2).load(0, w);
    const Values values = iq4_values();
    for (int j = 0; j < 4; ++j) values.look_up(w[j], codes[j], codes[4 + j]);
    add_group(codes, half_at(b), x, at, unit_at(2 * at), acc);
  }
};

struct DotMXFP4 {
  static constexpr int kPiece = 32;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + i * MXFP4::kBytes;
    uint32_t w[4], codes[8];
    UnalignedWords(b + 1).load(0, w);
    const Values values = doubled_e2m1_values();
    for (int j = 0; j < 4; ++j) values.look_up(w[j], codes[j], codes[4 + j]);
    add_group(codes, MXFP4::half_scale(b[0]), x, at, unit_at(2 * at), acc);
  }
};

// Scales and minimums of groups 2p and 2p + 1 of a Q4_K or Q5_K block, from the block's first 16 bytes.
struct PairScales {
  __device__ PairScales(const uint32_t (&head)[4], int p) {
    const float2 halves = halves_of(head[0]);
    const float of_scales = halves.x, of_minimums = -halves.y;
    const int shift = 16 * (p & 1);
    const uint32_t a = head[1] >> shift, b = head[2] >> shift, c = head[3] >> shift;
    const uint32_t s = p < 2 ? a & 0x3f3fu : (c & 0x0f0fu) | (a >> 2 & 0x3030u);
    const uint32_t m = p < 2 ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u);
    d[0] = of_scales * float(s & 255), d[1] = of_scales * float(s >> 8);
    minus_min[0] = of_minimums * float(m & 255), minus_min[1] = of_minimums * float(m >> 8);
  }
  float d[2], minus_min[2];
};

struct DotQ4K {
  static constexpr int kPiece = 64;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + (i >> 2) * Q4K::kBytes;
    const int p = i & 3;
    uint32_t head[4], w[8], codes[8];
    load_words<16>(b, head);
    load_words<16>(b + 16 + 32 * p, w);
    const PairScales scales(head, p);
    const int unit = unit_at(4 * at);
    for (int j = 0; j < 8; ++j) codes[j] = w[j] & 0x0f0f0f0fu;
    add_group(codes, scales.d[0], scales.minus_min[0], x, 2 * at, unit, acc);
    // High nibbles stay where they are: codes of 16 times the size.
    const float d = scales.d[1] * 0x1p-4f;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      int sum = 0;
      for (int half = 0; half < 2; ++half) {
        const uint4 v = x.unit(r, unit ^ 32 ^ 16 * half);
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        for (int j = 0; j < 4; ++j) sum = dot4_unsigned(w[4 * half + j] & 0xf0f0f0f0u, words[j], sum);
      }
      acc[r] = fmaf(float(sum), d * x.scale(r)[2 * at + 1], acc[r]);
      acc[r] = fmaf(scales.minus_min[1], x.sum(r)[2 * at + 1], acc[r]);
    }
  }
};

struct DotQ5K {
  static constexpr int kPiece = 64;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + (i >> 2) * Q5K::kBytes;
    const int p = i & 3;
    uint32_t head[4], fifth[8], w[8], codes[8];
    load_words<16>(b, head);
    load_words<16>(b + 16, fifth);
    load_words<16>(b + 48 + 32 * p, w);
    const PairScales scales(head, p);
    const int unit = unit_at(4 * at);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      for (int j = 0; j < 8; ++j)
        codes[j] = (w[j] >> (4 * g) & 0x0f0f0f0fu) | (fifth[j] >> (2 * p + g) & 0x01010101u) << 4;
      add_group(codes, scales.d[g], scales.minus_min[g], x, 2 * at + g, unit ^ 32 * g, acc);
    }
  }
};

struct DotIQ4XS {
  static constexpr int kPiece = 64;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + (i >> 2) * IQ4XS::kBytes;
    const int p = i & 3;
    uint32_t head[2], w[8], codes[8];
    load_words<8>(b, head);
    load_words<8>(b + 8 + 32 * p, w);
    const float d = half_at(b);
    const uint32_t low = head[1] >> (8 * p), high = head[0] >> (16 + 4 * p);
    const Values values = iq4_values();
    const int unit = unit_at(4 * at);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      for (int j = 0; j < 4; ++j) values.look_up(w[4 * g + j], codes[j], codes[4 + j]);
      const int scale = int((low >> (4 * g) & 15) | (high >> (2 * g) & 3) << 4) - 32;
      add_group(codes, d * float(scale), x, 2 * at + g, unit ^ 32 * g, acc);
    }
  }
};

// Super-blocks of 16 groups of 16. Piece i: half i / 2 % 2 of the block (128 elements), and of each of its four runs of
// 32 elements the half i % 2.
struct DotQ2K {
  static constexpr int kPiece = 64;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + (i >> 2) * Q2K::kBytes;
    const int h = i >> 1 & 1, j16 = i & 1;
    uint32_t w[4], packed[2], codes[16];
    load_words<4>(b + 16 + 32 * h + 16 * j16, w);
    load_words<4>(b + 8 * h, packed);
    const float of_scales = half_at(b + 80), of_minimums = -half_at(b + 82);
    float d[4], m[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint32_t both = packed[s / 2] >> (16 * (s % 2) + 8 * j16);
      d[s] = of_scales * float(both & 15), m[s] = of_minimums * float(both >> 4 & 15);
      for (int k = 0; k < 4; ++k) codes[4 * s + k] = w[k] >> (2 * s) & 0x03030303u;
    }
    add_halves(codes, d, m, x, at >> 1, j16, acc);
  }
};

struct DotQ3K {
  static constexpr int kPiece = 64;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + (i >> 2) * Q3K::kBytes;
    const int h = i >> 1 & 1, j16 = i & 1;
    uint32_t third[4], w[4], packed[3], codes[16];
    const UnalignedWords words(b);
    words.load(16 * j16, third);
    words.load(32 + 32 * h + 16 * j16, w);
    words.load(96, packed);
    const float of_scales = half_at(b + 108);
    float d[4], m[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      // Group 8h + 2s + j16: a nibble of byte 2s + j16, and bit pair 2h + s / 2 of byte 8 + 2 (s % 2) + j16.
      const uint32_t low = packed[s / 2] >> (16 * (s % 2) + 8 * j16 + 4 * h) & 15;
      const uint32_t high = packed[2] >> (16 * (s % 2) + 8 * j16 + 2 * (2 * h + s / 2)) & 3;
      d[s] = of_scales * float(int(low | high << 4) - 32), m[s] = -4.f * d[s];
      for (int k = 0; k < 4; ++k)
        codes[4 * s + k] = (w[k] >> (2 * s) & 0x03030303u) | (third[k] >> (4 * h + s) & 0x01010101u) << 2;
    }
    add_halves(codes, d, m, x, at >> 1, j16, acc);
  }
};

struct DotQ6K {
  static constexpr int kPiece = 64;
  template <int R>
  static __device__ void add(const uint8_t* row, int i, int at, const QuantizedRows& x, float (&acc)[R]) {
    const uint8_t* b = row + (i >> 2) * Q6K::kBytes;
    const int h = i >> 1 & 1, j16 = i & 1;
    uint32_t first[4], second[4], high[4], packed[2], codes[16];
    const UnalignedWords words(b);
    words.load(64 * h + 16 * j16, first);
    words.load(64 * h + 32 + 16 * j16, second);
    words.load(128 + 32 * h + 16 * j16, high);
    words.load(192 + 8 * h, packed);
    const float of_scales = half_at(b + 208);
    float d[4], m[4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int scale = int8_t(packed[s / 2] >> (16 * (s % 2) + 8 * j16));
      d[s] = of_scales * float(scale), m[s] = -32.f * d[s];
    }
    for (int k = 0; k < 4; ++k) {
      codes[k] = (first[k] & 0x0f0f0f0fu) | (high[k] << 4 & 0x30303030u);
      codes[4 + k] = (second[k] & 0x0f0f0f0fu) | (high[k] << 2 & 0x30303030u);
      codes[8 + k] = (first[k] >> 4 & 0x0f0f0f0fu) | (high[k] & 0x30303030u);
      codes[12 + k] = (second[k] >> 4 & 0x0f0f0f0fu) | (high[k] >> 2 & 0x30303030u);
    }
    add_halves(codes, d, m, x, at >> 1, j16, acc);
  }
};

template <class F, int R>
__device__ void add_pieces(const uint8_t* row, int first, int elements, int lane, int lanes, const QuantizedRows& x,
                           float (&acc)[R]) {
  const int pieces = elements / F::kPiece, offset = first / F::kPiece;
  for (int i = lane; i < pieces; i += lanes) F::add(row, i, offset + i, x, acc);
}

__host__ __device__ inline int piece_elements(Fmt format) {
  return (format >= Fmt::kQ2K && format <= Fmt::kQ6K) || format == Fmt::kIQ4XS ? 64 : 32;
}

// acc[r] += elements [first, first + elements) of a row, which begin at `row`, times those of x[r]; `lane` of `lanes`
// takes its share.
template <int R>
__device__ void add_product(Fmt format, const uint8_t* row, int first, int elements, int lane, int lanes,
                            const QuantizedRows& x, float (&acc)[R]) {
  switch (format) {
    case Fmt::kQ8_0:
      return add_pieces<DotQ8_0>(row, first, elements, lane, lanes, x, acc);
    case Fmt::kQ4_0:
      return add_pieces<DotQ4_0>(row, first, elements, lane, lanes, x, acc);
    case Fmt::kQ4_1:
      return add_pieces<DotQ4_1>(row, first, elements, lane, lanes, x, acc);
    case Fmt::kQ5_0:
      return add_pieces<DotQ5_0>(row, first, elements, lane, lanes, x, acc);
    case Fmt::kQ5_1:
      return add_pieces<DotQ5_1>(row, first, elements, lane, lanes, x, acc);
    case Fmt::kQ2K:
      return add_pieces<DotQ2K>(row, first, elements, lane, lanes, x, acc);
    case Fmt::kQ3K:
      return add_pieces<DotQ3K>(row, first, elements, lane, lanes, x, acc);
    case Fmt::kQ4K:
      return add_pieces<DotQ4K>(row, first, elements, lane, lanes, x, acc);
    case Fmt::kQ5K:
      return add_pieces<DotQ5K>(row, first, elements, lane, lanes, x, acc);
    case Fmt::kQ6K:
      return add_pieces<DotQ6K>(row, first, elements, lane, lanes, x, acc);
    case Fmt::kIQ4NL:
      return add_pieces<DotIQ4NL>(row, first, elements, lane, lanes, x, acc);
    case Fmt::kIQ4XS:
      return add_pieces<DotIQ4XS>(row, first, elements, lane, lanes, x, acc);
    default:
      return add_pieces<DotMXFP4>(row, first, elements, lane, lanes, x, acc);
  }
}

}  // namespace ef::cuda
