// AVX-512 F, BW, DQ, VL: sixteen lanes. The part that kernels_avx512*.cpp share; see kernels_simd.h for what may stand
// here.
#pragma once
#include <immintrin.h>

#include "expertflow/backend/cpu/kernels.h"

namespace ef::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kRowBlock = 4;
constexpr int kHeadBlock = 8;
using V = __m512;
using Part = __mmask16;

inline V zero() { return _mm512_setzero_ps(); }
inline V set1(float v) { return _mm512_set1_ps(v); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V div(V a, V b) { return _mm512_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V min(V a, V b) { return _mm512_min_ps(a, b); }
inline V max(V a, V b) { return _mm512_max_ps(a, b); }
inline V round(V v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V pow2_of_rounded(V n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
inline __m128 fold(V v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// fold of four vectors, side by side, and the last two steps of the tree within every 128 bits.
constexpr int kQuad = 4;
inline V add_halves(const V* v) {
  const V a = _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44), _mm512_shuffle_f32x4(v[0], v[1], 0xee));
  const V b = _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44), _mm512_shuffle_f32x4(v[2], v[3], 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
inline V low_pairs(V a, V b) { return _mm512_unpacklo_ps(a, b); }
inline V high_pairs(V a, V b) { return _mm512_unpackhi_ps(a, b); }
inline V low_doubles(V a, V b) { return _mm512_shuffle_ps(a, b, 0x44); }
inline V high_doubles(V a, V b) { return _mm512_shuffle_ps(a, b, 0xee); }
inline __m128 part_of_quads(V v, int j) {
  switch (j) {
    case 0:
      return _mm512_castps512_ps128(v);
    case 1:
      return _mm512_extractf32x4_ps(v, 1);
    case 2:
      return _mm512_extractf32x4_ps(v, 2);
    default:
      return _mm512_extractf32x4_ps(v, 3);
  }
}

inline Part part_of(int n) { return Part((1u << n) - 1u); }
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
inline V load_part(const float* p, Part part) { return _mm512_maskz_loadu_ps(part, p); }
inline void store_part(float* p, V v, Part part) { _mm512_mask_storeu_ps(p, part, v); }
inline V keep(V v, Part part) { return _mm512_maskz_mov_ps(part, v); }

// sixteen codes: out = scale * code [+ offset]
inline V codes_of(__m128i codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)); }
inline void put16(float* out, __m128i codes, V scale) { store(out, mul(scale, codes_of(codes))); }
inline void put16(float* out, __m128i codes, V scale, V offset) {
  store(out, add(mul(scale, codes_of(codes)), offset));
}

struct F32 {
  static constexpr int kBytes = 4;
  static V load(const std::byte* p) { return _mm512_loadu_ps(p); }
  static V load_part(const std::byte* p, int n) { return _mm512_maskz_loadu_ps(part_of(n), p); }
};
struct F16 {
  static constexpr int kBytes = 2;
  static V load(const std::byte* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static V load_part(const std::byte* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(part_of(n), p)); }
};
struct BF16 {
  static constexpr int kBytes = 2;
  static V widen(__m256i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16)); }
  static V load(const std::byte* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static V load_part(const std::byte* p, int n) { return widen(_mm256_maskz_loadu_epi16(part_of(n), p)); }
};

// E4M3 moved into binary16's fields is the number times 2^-8, subnormals included; 0x7f and 0xff are NaN.
struct F8 {
  static constexpr int kBytes = 1;
  static V widen(__m128i bytes) {
    const __m256i v = _mm256_cvtepu8_epi16(bytes), magnitude = _mm256_and_si256(v, _mm256_set1_epi16(0x7f));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(v, _mm256_set1_epi16(0x80)), 8);
    const __m256i halves = _mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign);
    return _mm512_cvtph_ps(_mm256_mask_mov_epi16(halves, nan, _mm256_set1_epi16(0x7e00)));
  }
  static V load(const std::byte* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static V load_part(const std::byte* p, int n) { return widen(_mm_maskz_loadu_epi8(part_of(n), p)); }
};

// ---- integers, for tiles_simd.h
using I = __m512i;
constexpr int kTileRowBlock = 12;
inline I load_words(const std::byte* p) { return _mm512_loadu_si512(p); }
inline I all_of(int v) { return _mm512_set1_epi32(v); }
inline I act(const int8_t* p) {
  int word;
  __builtin_memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}
inline I both(I a, I b) { return _mm512_and_si512(a, b); }
inline I either(I a, I b) { return _mm512_or_si512(a, b); }
inline I left(I v, int n) { return _mm512_sll_epi32(v, _mm_cvtsi32_si128(n)); }
inline I right(I v, int n) { return _mm512_srl_epi32(v, _mm_cvtsi32_si128(n)); }
inline I right_signed(I v, int n) { return _mm512_sra_epi32(v, _mm_cvtsi32_si128(n)); }
inline I less(I v, int n) { return _mm512_sub_epi32(v, _mm512_set1_epi32(n)); }
inline I flip_signs(I bytes) { return _mm512_xor_si512(bytes, _mm512_set1_epi8(char(-128))); }
inline I add_16(I a, I b) { return _mm512_add_epi16(a, b); }
inline I add_32(I a, I b) { return _mm512_add_epi32(a, b); }
inline I add_pairs(I v) { return _mm512_madd_epi16(v, _mm512_set1_epi16(1)); }
// Products with unsigned codes, or with signed ones as magnitudes whose signs go to the activations.
struct SignedCodes {
  explicit SignedCodes(I v) : magnitude(_mm512_abs_epi8(v)), negative(_mm512_movepi8_mask(v)) {}
  I magnitude;
  __mmask64 negative;
};
inline I pairs(I codes, I x) { return _mm512_maddubs_epi16(codes, x); }
inline I pairs(const SignedCodes& c, I x) {
  return _mm512_maddubs_epi16(c.magnitude, _mm512_mask_sub_epi8(x, c.negative, _mm512_setzero_si512(), x));
}
inline I lookup(const signed char* table, I codes) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), codes);
}
inline V to_float(I v) { return _mm512_cvtepi32_ps(v); }
inline V load_f16(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline I load_u16(const std::byte* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline I load_u8(const std::byte* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// 2^(e - 128); 255 is NaN.
inline V power_of_two_half(I e) {
  const I normal = _mm512_slli_epi32(less(e, 1), 23);
  const I tiny = _mm512_sllv_epi32(all_of(0x00200000), e);
  const I number = _mm512_mask_mov_epi32(normal, _mm512_cmplt_epi32_mask(e, all_of(2)), tiny);
  return _mm512_castsi512_ps(
      _mm512_mask_mov_epi32(number, _mm512_cmpeq_epi32_mask(e, all_of(255)), all_of(0x7fc00000)));
}
inline float max_lane(V v) { return _mm512_reduce_max_ps(v); }
// Rounds to nearest, ties to even; returns their sum.
inline int store_codes(int8_t* out, V v) {
  // What is no number becomes the least integer; bytes saturate, and so must what is summed.
  const I codes = _mm512_max_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(-128));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtsepi32_epi8(codes));
  return _mm512_reduce_add_epi32(codes);
}

}  // namespace
}  // namespace ef::cpu
