// IQ4_XS: 8 groups of 32, x = d * (scale - 32) * kIQ4Values[q] with scales of 6 bits.
#pragma once
#include <cstdint>

namespace ef {

struct BlockIQ4_XS {
  static constexpr int kElements = 256;
  uint16_t d;           ///< binary16 scale of the super-block
  uint16_t scales_h;    ///< bits 2g, 2g+1: bits 4 and 5 of group g's scale
  uint8_t scales_l[4];  ///< nibble g % 2 of byte g / 2: bits 0 to 3 of group g's scale
  uint8_t qs[128];      ///< 16 bytes a group of 32; low nibble of byte j: element j; high nibble: element j + 16
};
static_assert(sizeof(BlockIQ4_XS) == 136);

void decode(const BlockIQ4_XS& b, float* out);
/// Non-finite input: see finite_or_zero in block.h.
void encode(const float* in, BlockIQ4_XS& b);

}  // namespace ef
