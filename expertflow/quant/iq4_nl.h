// IQ4_NL: x = d * kIQ4Values[q], q of 4 bits.
#pragma once
#include <cstdint>

namespace ef {

struct BlockIQ4_NL {
  static constexpr int kElements = 32;
  uint16_t d;      ///< binary16 scale
  uint8_t qs[16];  ///< low nibble of byte j: element j; high nibble: element j + 16
};
static_assert(sizeof(BlockIQ4_NL) == 18);

/// The code book of IQ4_NL and IQ4_XS.
inline constexpr signed char kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

void decode(const BlockIQ4_NL& b, float* out);
/// Non-finite input: see finite_or_zero in block.h.
void encode(const float* in, BlockIQ4_NL& b);

}  // namespace ef
