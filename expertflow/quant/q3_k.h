// Q3_K: 16 groups of 16, x = d * (scale - 32) * (q - 4), q of 3 bits, scales of 6.
#pragma once
#include <cstdint>

namespace ef {

struct BlockQ3_K {
  static constexpr int kElements = 256;
  uint8_t hmask[32];   ///< bit g of byte j: third bit of element 32g + j
  uint8_t qs[64];      ///< bits 2s, 2s+1 of byte 32h + j: element 128h + 32s + j
  uint8_t scales[12];  ///< low 4 bits: nibbles of bytes 0-7 (groups 0-7 low, 8-15 high); bits 4, 5: byte 8 + g % 4, bit
                       ///< pair g / 4
  uint16_t d;          ///< binary16 scale of the scales
};
static_assert(sizeof(BlockQ3_K) == 110);

void decode(const BlockQ3_K& b, float* out);
/// Non-finite input: see finite_or_zero in block.h.
void encode(const float* in, BlockQ3_K& b);

}  // namespace ef
