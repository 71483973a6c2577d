// Q4_1: x = d * q + m, q of 4 bits.
#pragma once
#include <cstdint>

namespace ef {

struct BlockQ4_1 {
  static constexpr int kElements = 32;
  uint16_t d, m;   ///< binary16 scale and minimum
  uint8_t qs[16];  ///< low nibble of byte j: element j; high nibble: element j + 16
};
static_assert(sizeof(BlockQ4_1) == 20);

void decode(const BlockQ4_1& b, float* out);
/// Non-finite input: see finite_or_zero in block.h.
void encode(const float* in, BlockQ4_1& b);

}  // namespace ef
