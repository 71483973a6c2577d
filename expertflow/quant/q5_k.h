// Q5_K: 8 groups of 32, x = (d * scale) * q - dmin * min, q of 5 bits, scales and minimums of 6.
#pragma once
#include <cstdint>

namespace ef {

struct BlockQ5_K {
  static constexpr int kElements = 256;
  uint16_t d, dmin;    ///< binary16 scales of the scales and of the minimums
  uint8_t scales[12];  ///< see k_scales.h
  uint8_t qh[32];      ///< bit g of byte j: fifth bit of element 32g + j
  uint8_t qs[128];     ///< byte 32p + j: low nibble element 64p + j, high nibble element 64p + 32 + j
};
static_assert(sizeof(BlockQ5_K) == 176);

void decode(const BlockQ5_K& b, float* out);
/// Non-finite input: see finite_or_zero in block.h.
void encode(const float* in, BlockQ5_K& b);

}  // namespace ef
