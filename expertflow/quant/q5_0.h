// Q5_0: x = d * (q - 16), q of 5 bits.
#pragma once
#include <cstdint>

namespace ef {

struct BlockQ5_0 {
  static constexpr int kElements = 32;
  uint16_t d;      ///< binary16 scale
  uint8_t qh[4];   ///< bit i (little-endian 32 bits): fifth bit of element i
  uint8_t qs[16];  ///< low nibble of byte j: element j; high nibble: element j + 16
};
static_assert(sizeof(BlockQ5_0) == 22);

void decode(const BlockQ5_0& b, float* out);
/// Non-finite input: see finite_or_zero in block.h.
void encode(const float* in, BlockQ5_0& b);

}  // namespace ef
