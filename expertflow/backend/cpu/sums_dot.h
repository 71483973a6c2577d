// The integer sums of tiles_simd.h where an instruction adds four products of unsigned codes and signed activations to
// a lane. Included like kernels_simd.h, after `dot` (sum, codes, activations) and the lanes.
#pragma once

namespace ef::cpu {
namespace {

template <class T>
struct Sums {
  static I prepare(I codes) { return T::kSigned ? flip_signs(codes) : codes; }
  void begin(const int32_t* start) { sum = all_of(*start); }
  void add(I codes, I x) { sum = dot(sum, codes, x); }
  I total() const { return sum; }
  I sum;
};

}  // namespace
}  // namespace ef::cpu
