// AVX-512 F, BW, DQ, VL.
#ifdef EF_CPU_X86
#include "expertflow/backend/cpu/lanes_avx512.h"

namespace ef::cpu {
namespace {

// Unsigned codes times signed activations, in pairs to 16 bits. The pairs of a whole group stay there where they fit.
template <class T>
struct Sums {
  static constexpr bool kNarrow = !T::kSigned && T::kGroup / 4 * 2 * 127 * T::kMaxCode <= 32767;
  struct Codes {
    I magnitude;
    __mmask64 negative;
  };
  static auto prepare(I codes) {
    if constexpr (T::kSigned)
      return Codes{_mm512_abs_epi8(codes), _mm512_movepi8_mask(codes)};
    else
      return codes;
  }
  void begin(const int32_t* at) { start = at, sum = _mm512_setzero_si512(); }
  template <class C>
  void add(const C& codes, I x) {
    I pairs;
    if constexpr (T::kSigned)
      pairs = _mm512_maddubs_epi16(codes.magnitude, _mm512_mask_sub_epi8(x, codes.negative, _mm512_setzero_si512(), x));
    else
      pairs = _mm512_maddubs_epi16(codes, x);
    if constexpr (kNarrow)
      sum = _mm512_add_epi16(sum, pairs);
    else
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  I total() const {
    const I words = kNarrow ? _mm512_madd_epi16(sum, _mm512_set1_epi16(1)) : sum;
    return T::kSigned ? words : _mm512_add_epi32(words, _mm512_set1_epi32(*start));
  }
  const int32_t* start;
  I sum;
};

}  // namespace
}  // namespace ef::cpu

#include "expertflow/backend/cpu/kernels_simd.h"

namespace ef::cpu {
const Kernels& avx512_kernels() { return kKernels; }
}  // namespace ef::cpu
#endif
