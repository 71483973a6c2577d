// Q8_0: x = d * q.
#pragma once
#include <cstdint>

namespace ef {

struct BlockQ8_0 {
  static constexpr int kElements = 32;
  uint16_t d;  ///< binary16 scale
  int8_t qs[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

void decode(const BlockQ8_0& b, float* out);
/// Non-finite input: see finite_or_zero in block.h.
void encode(const float* in, BlockQ8_0& b);

}  // namespace ef
