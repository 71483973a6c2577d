// Blocks to float32 for the tile of weights that a product works on: the same operations as the reference in quant/, so
// the same bits. Blocks in files have no alignment, so they are read by their bytes; the first argument of expand only
// names the format. All formats come down to sixteen codes of a byte each, times a scale, plus an offset.
// Included like kernels_simd.h, which says what may stand here; needs put16(out, codes, scale) and
// put16(out, codes, scale, offset) of the instruction set.
#pragma once
#include "expertflow/quant/formats.h"
#include "expertflow/quant/iq4_nl.h"
#include "expertflow/quant/iq4_xs.h"
#include "expertflow/quant/mxfp4.h"
#include "expertflow/quant/q2_k.h"
#include "expertflow/quant/q3_k.h"
#include "expertflow/quant/q4_0.h"
#include "expertflow/quant/q4_1.h"
#include "expertflow/quant/q4_k.h"
#include "expertflow/quant/q5_0.h"
#include "expertflow/quant/q5_1.h"
#include "expertflow/quant/q5_k.h"
#include "expertflow/quant/q6_k.h"
#include "expertflow/quant/q8_0.h"
#include "expertflow/quant/scalars.h"

namespace ef::cpu {
namespace {

// The binary16 number at p.
inline float half(const uint8_t* p) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(p[0] | p[1] << 8))); }
inline __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m128i low_nibbles(__m128i v) { return _mm_and_si128(v, _mm_set1_epi8(15)); }
inline __m128i high_nibbles(__m128i v) { return low_nibbles(_mm_srli_epi16(v, 4)); }
inline __m128i minus(__m128i codes, char n) { return _mm_sub_epi8(codes, _mm_set1_epi8(n)); }
// Bits s and s + 1 of every byte.
inline __m128i bit_pairs(__m128i v, int s) {
  return _mm_and_si128(_mm_srl_epi16(v, _mm_cvtsi32_si128(s)), _mm_set1_epi8(3));
}
// `value` in the bytes whose bit `bit` is set, else 0.
inline __m128i where_bit(__m128i v, int bit, char value) {
  const __m128i mask = _mm_set1_epi8(char(1 << bit));
  return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(v, mask), mask), _mm_set1_epi8(value));
}
// 16 in byte i if bit i of the two bytes is set, else 0.
inline __m128i fifth_bits(const uint8_t* two) {
  const __m128i both = _mm_set1_epi16(short(two[0] | two[1] << 8));
  const __m128i spread = _mm_shuffle_epi8(both, _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  const __m128i mask = _mm_set1_epi64x(int64_t(0x8040201008040201));
  return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(spread, mask), mask), _mm_set1_epi8(16));
}

inline void expand(const BlockQ8_0*, const uint8_t* p, float* out) {
  const uint8_t* qs = p + offsetof(BlockQ8_0, qs);
  const V d = set1(half(p + offsetof(BlockQ8_0, d)));
  put16(out, load16(qs), d);
  put16(out + 16, load16(qs + 16), d);
}
inline void expand(const BlockQ4_0*, const uint8_t* p, float* out) {
  const uint8_t* qs = p + offsetof(BlockQ4_0, qs);
  const V d = set1(half(p + offsetof(BlockQ4_0, d)));
  const __m128i q = load16(qs);
  put16(out, minus(low_nibbles(q), 8), d);
  put16(out + 16, minus(high_nibbles(q), 8), d);
}
inline void expand(const BlockQ4_1*, const uint8_t* p, float* out) {
  const uint8_t* qs = p + offsetof(BlockQ4_1, qs);
  const V d = set1(half(p + offsetof(BlockQ4_1, d))), m = set1(half(p + offsetof(BlockQ4_1, m)));
  const __m128i q = load16(qs);
  put16(out, low_nibbles(q), d, m);
  put16(out + 16, high_nibbles(q), d, m);
}
inline void expand(const BlockQ5_0*, const uint8_t* p, float* out) {
  const uint8_t* qh = p + offsetof(BlockQ5_0, qh);
  const uint8_t* qs = p + offsetof(BlockQ5_0, qs);
  const V d = set1(half(p + offsetof(BlockQ5_0, d)));
  const __m128i q = load16(qs);
  put16(out, minus(_mm_or_si128(low_nibbles(q), fifth_bits(qh)), 16), d);
  put16(out + 16, minus(_mm_or_si128(high_nibbles(q), fifth_bits(qh + 2)), 16), d);
}
inline void expand(const BlockQ5_1*, const uint8_t* p, float* out) {
  const uint8_t* qh = p + offsetof(BlockQ5_1, qh);
  const uint8_t* qs = p + offsetof(BlockQ5_1, qs);
  const V d = set1(half(p + offsetof(BlockQ5_1, d))), m = set1(half(p + offsetof(BlockQ5_1, m)));
  const __m128i q = load16(qs);
  put16(out, _mm_or_si128(low_nibbles(q), fifth_bits(qh)), d, m);
  put16(out + 16, _mm_or_si128(high_nibbles(q), fifth_bits(qh + 2)), d, m);
}
inline void expand(const BlockIQ4_NL*, const uint8_t* p, float* out) {
  const uint8_t* qs = p + offsetof(BlockIQ4_NL, qs);
  const V d = set1(half(p + offsetof(BlockIQ4_NL, d)));
  const __m128i q = load16(qs), values = load16(kIQ4Values);
  put16(out, _mm_shuffle_epi8(values, low_nibbles(q)), d);
  put16(out + 16, _mm_shuffle_epi8(values, high_nibbles(q)), d);
}
inline void expand(const BlockMXFP4*, const uint8_t* p, float* out) {
  const uint8_t* qs = p + offsetof(BlockMXFP4, qs);
  const V d = set1(e8m0_half_to_f32(p[offsetof(BlockMXFP4, e)]));
  const __m128i q = load16(qs), values = load16(kE2M1Doubled);
  put16(out, _mm_shuffle_epi8(values, low_nibbles(q)), d);
  put16(out + 16, _mm_shuffle_epi8(values, high_nibbles(q)), d);
}

inline void expand(const BlockIQ4_XS*, const uint8_t* p, float* out) {
  const uint8_t* qs = p + offsetof(BlockIQ4_XS, qs);
  const int scales_h = p[offsetof(BlockIQ4_XS, scales_h)] | p[offsetof(BlockIQ4_XS, scales_h) + 1] << 8;
  const uint8_t* scales_l = p + offsetof(BlockIQ4_XS, scales_l);
  const float d = half(p + offsetof(BlockIQ4_XS, d));
  const __m128i values = load16(kIQ4Values);
  for (int g = 0; g < 8; ++g) {
    const int low = scales_l[g / 2] >> (4 * (g % 2)) & 15, high = scales_h >> (2 * g) & 3;
    const V scale = set1(d * float((low | high << 4) - 32));
    const __m128i q = load16(qs + 16 * g);
    put16(out + 32 * g, _mm_shuffle_epi8(values, low_nibbles(q)), scale);
    put16(out + 32 * g + 16, _mm_shuffle_epi8(values, high_nibbles(q)), scale);
  }
}

// Scales and negated minimums of a Q4_K or Q5_K block; the packing is described in quant/k_scales.h.
struct KScales {
  KScales(const uint8_t* d_at, const uint8_t* dmin_at, const uint8_t* p) {
    const float d = half(d_at), dmin = half(dmin_at);
    for (int g = 0; g < 8; ++g) {
      const int s = g < 4 ? p[g] & 63 : (p[g + 4] & 15) | (p[g - 4] >> 6) << 4;
      const int m = g < 4 ? p[g + 4] & 63 : p[g + 4] >> 4 | (p[g] >> 6) << 4;
      scale[g] = d * float(s);
      offset[g] = -(dmin * float(m));
    }
  }
  float scale[8], offset[8];
};

inline void expand(const BlockQ4_K*, const uint8_t* p, float* out) {
  const uint8_t* qs = p + offsetof(BlockQ4_K, qs);
  const KScales s(p + offsetof(BlockQ4_K, d), p + offsetof(BlockQ4_K, dmin), p + offsetof(BlockQ4_K, scales));
  for (int pair = 0; pair < 4; ++pair) {
    const V s0 = set1(s.scale[2 * pair]), o0 = set1(s.offset[2 * pair]);
    const V s1 = set1(s.scale[2 * pair + 1]), o1 = set1(s.offset[2 * pair + 1]);
    for (int j = 0; j < 32; j += 16) {
      const __m128i q = load16(qs + 32 * pair + j);
      put16(out + 64 * pair + j, low_nibbles(q), s0, o0);
      put16(out + 64 * pair + 32 + j, high_nibbles(q), s1, o1);
    }
  }
}
inline void expand(const BlockQ5_K*, const uint8_t* p, float* out) {
  const uint8_t* qh = p + offsetof(BlockQ5_K, qh);
  const uint8_t* qs = p + offsetof(BlockQ5_K, qs);
  const KScales s(p + offsetof(BlockQ5_K, d), p + offsetof(BlockQ5_K, dmin), p + offsetof(BlockQ5_K, scales));
  for (int pair = 0; pair < 4; ++pair) {
    const V s0 = set1(s.scale[2 * pair]), o0 = set1(s.offset[2 * pair]);
    const V s1 = set1(s.scale[2 * pair + 1]), o1 = set1(s.offset[2 * pair + 1]);
    for (int j = 0; j < 32; j += 16) {
      const __m128i q = load16(qs + 32 * pair + j), high = load16(qh + j);
      put16(out + 64 * pair + j, _mm_or_si128(low_nibbles(q), where_bit(high, 2 * pair, 16)), s0, o0);
      put16(out + 64 * pair + 32 + j, _mm_or_si128(high_nibbles(q), where_bit(high, 2 * pair + 1, 16)), s1, o1);
    }
  }
}
inline void expand(const BlockQ6_K*, const uint8_t* p, float* out) {
  const uint8_t* qh = p + offsetof(BlockQ6_K, qh);
  const uint8_t* ql = p + offsetof(BlockQ6_K, ql);
  const float d = half(p + offsetof(BlockQ6_K, d));
  for (int group = 0; group < 16; ++group) {
    const int upper = group / 8, part = group % 8 / 2, j = 16 * (group % 2);
    const __m128i low = load16(ql + 64 * upper + 32 * (part % 2) + j);
    const __m128i high = bit_pairs(load16(qh + 32 * upper + j), 2 * part);
    const __m128i q = _mm_or_si128(part < 2 ? low_nibbles(low) : high_nibbles(low), _mm_slli_epi16(high, 4));
    put16(out + 16 * group, minus(q, 32), set1(d * float(int8_t(p[offsetof(BlockQ6_K, scales) + size_t(group)]))));
  }
}
inline void expand(const BlockQ2_K*, const uint8_t* p, float* out) {
  const uint8_t* qs = p + offsetof(BlockQ2_K, qs);
  const uint8_t* scales = p + offsetof(BlockQ2_K, scales);
  const float d = half(p + offsetof(BlockQ2_K, d)), dmin = half(p + offsetof(BlockQ2_K, dmin));
  for (int group = 0; group < 16; ++group) {
    const __m128i q = load16(qs + 32 * (group / 8) + 16 * (group % 2));
    put16(out + 16 * group, bit_pairs(q, group % 8 / 2 * 2), set1(d * float(scales[group] & 15)),
          set1(-(dmin * float(scales[group] >> 4))));
  }
}
inline void expand(const BlockQ3_K*, const uint8_t* p, float* out) {
  const uint8_t* hmask = p + offsetof(BlockQ3_K, hmask);
  const uint8_t* qs = p + offsetof(BlockQ3_K, qs);
  const uint8_t* scales = p + offsetof(BlockQ3_K, scales);
  const float d = half(p + offsetof(BlockQ3_K, d));
  for (int group = 0; group < 16; ++group) {
    const int low = scales[group % 8] >> (4 * (group / 8)) & 15;
    const int high = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
    const int j = 16 * (group % 2);
    const __m128i pairs = bit_pairs(load16(qs + 32 * (group / 8) + j), group % 8 / 2 * 2);
    const __m128i third = where_bit(load16(hmask + j), group / 2, 4);
    put16(out + 16 * group, minus(_mm_or_si128(pairs, third), 4), set1(d * float((low | high << 4) - 32)));
  }
}

template <class Block>
void dequantize(const std::byte* blocks, float* out, int64_t n) {
  const auto* p = reinterpret_cast<const uint8_t*>(blocks);
  for (int64_t i = 0; i < n; i += Block::kElements, p += sizeof(Block))
    expand(static_cast<const Block*>(nullptr), p, out + i);
}

// E4M3 moved into binary16's fields is the number times 2^-8, subnormals included; 0x7f and 0xff are NaN.
inline void expand_e4m3(__m128i bytes, float* out) {
  const __m128i v = _mm_cvtepu8_epi16(bytes), magnitude_bits = _mm_set1_epi16(0x7f);
  const __m128i magnitude = _mm_and_si128(v, magnitude_bits);
  const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, magnitude_bits), _mm_set1_epi16(0x7e00));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(v, _mm_set1_epi16(0x80)), 8);
  const __m128i halves = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign), nan);
  _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.f)));
}
void dequantize_e4m3(const std::byte* in, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) expand_e4m3(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i)), out + i);
  if (i == n) return;
  alignas(16) std::byte bytes[16] = {};
  float numbers[8];
  for (int64_t k = i; k < n; ++k) bytes[k - i] = in[k];
  expand_e4m3(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)), numbers);
  for (int64_t k = i; k < n; ++k) out[k] = numbers[k - i];
}

// By Format, as Kernels::dequantize wants it.
struct DequantizeTable {
  DequantizeFn row[kMaxFormats] = {};
};
constexpr DequantizeTable dequantize_table() {
  static_assert(int(Format::kCount) <= kMaxFormats);
  DequantizeTable t;
  t.row[int(Format::kF8E4M3)] = dequantize_e4m3;
  t.row[int(Format::kQ8_0)] = dequantize<BlockQ8_0>;
  t.row[int(Format::kQ4_0)] = dequantize<BlockQ4_0>;
  t.row[int(Format::kQ4_1)] = dequantize<BlockQ4_1>;
  t.row[int(Format::kQ5_0)] = dequantize<BlockQ5_0>;
  t.row[int(Format::kQ5_1)] = dequantize<BlockQ5_1>;
  t.row[int(Format::kQ2K)] = dequantize<BlockQ2_K>;
  t.row[int(Format::kQ3K)] = dequantize<BlockQ3_K>;
  t.row[int(Format::kQ4K)] = dequantize<BlockQ4_K>;
  t.row[int(Format::kQ5K)] = dequantize<BlockQ5_K>;
  t.row[int(Format::kQ6K)] = dequantize<BlockQ6_K>;
  t.row[int(Format::kIQ4NL)] = dequantize<BlockIQ4_NL>;
  t.row[int(Format::kIQ4XS)] = dequantize<BlockIQ4_XS>;
  t.row[int(Format::kMXFP4)] = dequantize<BlockMXFP4>;
  return t;
}
constexpr DequantizeTable kDequantize = dequantize_table();

}  // namespace
}  // namespace ef::cpu
