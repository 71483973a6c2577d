// AVX2, FMA and F16C: eight lanes. The part that kernels_avx2*.cpp share; see kernels_simd.h for what may stand here.
#pragma once
#include <immintrin.h>

#include "expertflow/backend/cpu/kernels.h"

namespace ef::cpu {
namespace {

constexpr int kLanes = 8;
constexpr int kRowBlock = 3;
constexpr int kHeadBlock = 4;
using V = __m256;
using Part = __m256i;

inline V zero() { return _mm256_setzero_ps(); }
inline V set1(float v) { return _mm256_set1_ps(v); }
inline V add(V a, V b) { return _mm256_add_ps(a, b); }
inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
inline V div(V a, V b) { return _mm256_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V min(V a, V b) { return _mm256_min_ps(a, b); }
inline V max(V a, V b) { return _mm256_max_ps(a, b); }
inline V round(V v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline V pow2_of_rounded(V n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline __m128 fold(V v) { return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); }

// fold of two vectors, side by side, and the last two steps of the tree within every 128 bits.
constexpr int kQuad = 2;
inline V add_halves(const V* v) {
  return _mm256_add_ps(_mm256_permute2f128_ps(v[0], v[1], 0x20), _mm256_permute2f128_ps(v[0], v[1], 0x31));
}
inline V low_pairs(V a, V b) { return _mm256_unpacklo_ps(a, b); }
inline V high_pairs(V a, V b) { return _mm256_unpackhi_ps(a, b); }
inline V low_doubles(V a, V b) { return _mm256_shuffle_ps(a, b, 0x44); }
inline V high_doubles(V a, V b) { return _mm256_shuffle_ps(a, b, 0xee); }
inline __m128 part_of_quads(V v, int j) { return j == 0 ? _mm256_castps256_ps128(v) : _mm256_extractf128_ps(v, 1); }

inline Part part_of(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, V v) { _mm256_storeu_ps(p, v); }
inline V load_part(const float* p, Part part) { return _mm256_maskload_ps(p, part); }
inline void store_part(float* p, V v, Part part) { _mm256_maskstore_ps(p, part, v); }
inline V keep(V v, Part part) { return _mm256_and_ps(v, _mm256_castsi256_ps(part)); }

// sixteen codes: out = scale * code [+ offset]
inline V codes_low(__m128i codes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)); }
inline V codes_high(__m128i codes) { return codes_low(_mm_srli_si128(codes, 8)); }
inline void put16(float* out, __m128i codes, V scale) {
  store(out, mul(scale, codes_low(codes)));
  store(out + 8, mul(scale, codes_high(codes)));
}
inline void put16(float* out, __m128i codes, V scale, V offset) {
  store(out, add(mul(scale, codes_low(codes)), offset));
  store(out + 8, add(mul(scale, codes_high(codes)), offset));
}

struct F32 {
  static constexpr int kBytes = 4;
  static V load(const std::byte* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static V load_part(const std::byte* p, int n) {
    return _mm256_maskload_ps(reinterpret_cast<const float*>(p), part_of(n));
  }
};

// n < 8 two-byte numbers, zeros behind them.
inline __m128i load_halves(const std::byte* p, int n) {
  alignas(16) std::byte bytes[16] = {};
  for (int i = 0; i < 2 * n; ++i) bytes[i] = p[i];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}
struct F16 {
  static constexpr int kBytes = 2;
  static V load(const std::byte* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static V load_part(const std::byte* p, int n) { return _mm256_cvtph_ps(load_halves(p, n)); }
};
struct BF16 {
  static constexpr int kBytes = 2;
  static V widen(__m128i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16)); }
  static V load(const std::byte* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static V load_part(const std::byte* p, int n) { return widen(load_halves(p, n)); }
};

// E4M3 moved into binary16's fields is the number times 2^-8, subnormals included; 0x7f and 0xff are NaN.
struct F8 {
  static constexpr int kBytes = 1;
  static V widen(__m128i bytes) {
    const __m128i v = _mm_cvtepu8_epi16(bytes), magnitude = _mm_and_si128(v, _mm_set1_epi16(0x7f));
    const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7e00));
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(v, _mm_set1_epi16(0x80)), 8);
    return _mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign), nan));
  }
  static V load(const std::byte* p) { return widen(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))); }
  static V load_part(const std::byte* p, int n) {
    alignas(16) std::byte bytes[16] = {};
    for (int i = 0; i < n; ++i) bytes[i] = p[i];
    return widen(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
};

// ---- integers, for tiles_simd.h
using I = __m256i;
constexpr int kTileRowBlock = 4;
inline I load_words(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline I all_of(int v) { return _mm256_set1_epi32(v); }
inline I act(const int8_t* p) {
  int word;
  __builtin_memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
inline I both(I a, I b) { return _mm256_and_si256(a, b); }
inline I either(I a, I b) { return _mm256_or_si256(a, b); }
inline I left(I v, int n) { return _mm256_sll_epi32(v, _mm_cvtsi32_si128(n)); }
inline I right(I v, int n) { return _mm256_srl_epi32(v, _mm_cvtsi32_si128(n)); }
inline I right_signed(I v, int n) { return _mm256_sra_epi32(v, _mm_cvtsi32_si128(n)); }
inline I less(I v, int n) { return _mm256_sub_epi32(v, _mm256_set1_epi32(n)); }
inline I flip_signs(I bytes) { return _mm256_xor_si256(bytes, _mm256_set1_epi8(char(-128))); }
inline I add_16(I a, I b) { return _mm256_add_epi16(a, b); }
inline I add_32(I a, I b) { return _mm256_add_epi32(a, b); }
inline I add_pairs(I v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }
// Products with unsigned codes, or with signed ones as magnitudes whose signs go to the activations.
struct SignedCodes {
  explicit SignedCodes(I v) : codes(v) {}
  I codes;
};
inline I pairs(I codes, I x) { return _mm256_maddubs_epi16(codes, x); }
inline I pairs(const SignedCodes& c, I x) {
  return _mm256_maddubs_epi16(_mm256_abs_epi8(c.codes), _mm256_sign_epi8(x, c.codes));
}
inline I lookup(const signed char* table, I codes) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes);
}
inline V to_float(I v) { return _mm256_cvtepi32_ps(v); }
inline V load_f16(const std::byte* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline I load_u16(const std::byte* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline I load_u8(const std::byte* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
// 2^(e - 128); 255 is NaN.
inline V power_of_two_half(I e) {
  const I normal = _mm256_slli_epi32(less(e, 1), 23);
  const I tiny = _mm256_sllv_epi32(all_of(0x00200000), e);
  const I number = _mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(all_of(2), e));
  return _mm256_castsi256_ps(_mm256_blendv_epi8(number, all_of(0x7fc00000), _mm256_cmpeq_epi32(e, all_of(255))));
}
inline float max_lane(V v) {
  const __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
}
// Rounds to nearest, ties to even; returns their sum.
inline int store_codes(int8_t* out, V v) {
  const I codes = _mm256_cvtps_epi32(v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packs_epi16(words, words));
  const __m128i ones = _mm_madd_epi16(words, _mm_set1_epi16(1));
  const __m128i two = _mm_add_epi32(ones, _mm_unpackhi_epi64(ones, ones));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

}  // namespace
}  // namespace ef::cpu
