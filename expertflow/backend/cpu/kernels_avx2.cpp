// AVX2, FMA and F16C.
#ifdef EF_CPU_X86
#include "expertflow/backend/cpu/lanes_avx2.h"

namespace ef::cpu {
namespace {

// Unsigned codes times signed activations, in pairs to 16 bits. The pairs of a whole group stay there where they fit.
template <class T>
struct Sums {
  static constexpr bool kNarrow = !T::kSigned && T::kGroup / 4 * 2 * 127 * T::kMaxCode <= 32767;
  static I prepare(I codes) { return codes; }
  void begin(const int32_t* at) { start = at, sum = _mm256_setzero_si256(); }
  void add(I codes, I x) {
    const I pairs = T::kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
                               : _mm256_maddubs_epi16(codes, x);
    if constexpr (kNarrow)
      sum = _mm256_add_epi16(sum, pairs);
    else
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  I total() const {
    const I words = kNarrow ? _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) : sum;
    return T::kSigned ? words : _mm256_add_epi32(words, _mm256_set1_epi32(*start));
  }
  const int32_t* start;
  I sum;
};

}  // namespace
}  // namespace ef::cpu

#include "expertflow/backend/cpu/kernels_simd.h"

namespace ef::cpu {
const Kernels& avx2_kernels() { return kKernels; }
}  // namespace ef::cpu
#endif
