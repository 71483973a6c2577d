// Q4_0: x = d * (q - 8), q of 4 bits.
#pragma once
#include <cstdint>

namespace ef {

struct BlockQ4_0 {
  static constexpr int kElements = 32;
  uint16_t d;      ///< binary16 scale
  uint8_t qs[16];  ///< low nibble of byte j: element j; high nibble: element j + 16
};
static_assert(sizeof(BlockQ4_0) == 18);

void decode(const BlockQ4_0& b, float* out);
/// Non-finite input: see finite_or_zero in block.h.
void encode(const float* in, BlockQ4_0& b);

}  // namespace ef
