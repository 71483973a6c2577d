// AVX-512 F, BW, DQ, VL: sixteen lanes.
#ifdef EF_CPU_X86
#include <immintrin.h>

#include "expertflow/backend/cpu/kernels.h"

namespace ef::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kRowBlock = 6;
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

}  // namespace
}  // namespace ef::cpu

#include "expertflow/backend/cpu/kernels_simd.h"

namespace ef::cpu {
const Kernels& avx512_kernels() { return kKernels; }
}  // namespace ef::cpu
#endif
