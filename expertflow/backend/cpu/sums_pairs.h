// The integer sums of tiles_simd.h where products of unsigned codes and signed activations are added in pairs to 16
// bits. The pairs of a whole group stay there where they fit. Included like kernels_simd.h, after the lanes.
#pragma once

namespace ef::cpu {
namespace {

template <class T>
struct Sums {
  static constexpr bool kNarrow = !T::kSigned && T::kGroup / 4 * 2 * 127 * T::kMaxCode <= 32767;
  static auto prepare(I codes) {
    if constexpr (T::kSigned)
      return SignedCodes(codes);
    else
      return codes;
  }
  void begin(const int32_t* at) { start = at, sum = all_of(0); }
  template <class C>
  void add(const C& codes, I x) {
    const I products = pairs(codes, x);
    if constexpr (kNarrow)
      sum = add_16(sum, products);
    else
      sum = add_32(sum, add_pairs(products));
  }
  I total() const {
    const I words = kNarrow ? add_pairs(sum) : sum;
    return T::kSigned ? words : add_32(words, all_of(*start));
  }
  const int32_t* start;
  I sum;
};

}  // namespace
}  // namespace ef::cpu
