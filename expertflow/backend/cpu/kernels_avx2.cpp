// AVX2, FMA and F16C: eight lanes.
#ifdef EF_CPU_X86
#include <immintrin.h>

#include "expertflow/backend/cpu/kernels.h"

namespace ef::cpu {
namespace {

constexpr int kLanes = 8;
constexpr int kRowBlock = 3;
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

}  // namespace
}  // namespace ef::cpu

#include "expertflow/backend/cpu/kernels_simd.h"

namespace ef::cpu {
const Kernels& avx2_kernels() { return kKernels; }
}  // namespace ef::cpu
#endif
