// The integer sums of tiles_simd.h with AVX-512 VNNI.
#pragma once
#include "expertflow/backend/cpu/lanes_avx512.h"

namespace ef::cpu {
namespace {

// Four products of unsigned codes and signed activations a lane in one instruction.
template <class T>
struct Sums {
  static I prepare(I codes) { return T::kSigned ? _mm512_xor_si512(codes, _mm512_set1_epi8(char(-128))) : codes; }
  void begin(const int32_t* start) { sum = _mm512_set1_epi32(*start); }
  void add(I codes, I x) { sum = _mm512_dpbusd_epi32(sum, codes, x); }
  I total() const { return sum; }
  I sum;
};

}  // namespace
}  // namespace ef::cpu
