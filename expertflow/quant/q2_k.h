// Q2_K: 16 groups of 16, x = (d * scale) * q - dmin * min, q of 2 bits, scales and minimums of 4.
#pragma once
#include <cstdint>

namespace ef {

struct BlockQ2_K {
  static constexpr int kElements = 256;
  uint8_t scales[16];  ///< per group: low nibble scale, high nibble minimum
  uint8_t qs[64];      ///< bits 2s, 2s+1 of byte 32h + j: element 128h + 32s + j
  uint16_t d, dmin;    ///< binary16 scales of the scales and of the minimums
};
static_assert(sizeof(BlockQ2_K) == 84);

void decode(const BlockQ2_K& b, float* out);
/// Non-finite input: see finite_or_zero in block.h.
void encode(const float* in, BlockQ2_K& b);

}  // namespace ef
