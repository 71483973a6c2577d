// Q6_K: 16 groups of 16, x = d * scale * (q - 32), q of 6 bits, scales of 8.
#pragma once
#include <cstdint>

namespace ef {

struct BlockQ6_K {
  static constexpr int kElements = 256;
  uint8_t ql[128];    ///< byte 64h + 32(s % 2) + j, nibble s / 2: low 4 bits of element 128h + 32s + j
  uint8_t qh[64];     ///< byte 32h + j, bits 2s, 2s+1: upper 2 bits of element 128h + 32s + j
  int8_t scales[16];  ///< one per group
  uint16_t d;         ///< binary16 scale of the scales
};
static_assert(sizeof(BlockQ6_K) == 210);

void decode(const BlockQ6_K& b, float* out);
/// Non-finite input: see finite_or_zero in block.h.
void encode(const float* in, BlockQ6_K& b);

}  // namespace ef
