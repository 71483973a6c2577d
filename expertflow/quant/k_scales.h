// The 12 bytes that hold the eight 6-bit scales and eight 6-bit minimums of Q4_K and Q5_K blocks.
#pragma once
#include <cstdint>

namespace ef {

struct ScaleMin {
  uint8_t scale, minimum;
};

/// Groups 0 to 3: low 6 bits of bytes g (scale) and g + 4 (minimum). Groups 4 to 7: low 4 bits in the nibbles of byte g
/// + 4, the upper 2 bits on top of bytes g - 4 (scale) and g (minimum).
inline ScaleMin unpack_scale_min(const uint8_t* packed, int g) {
  if (g < 4) return {uint8_t(packed[g] & 63), uint8_t(packed[g + 4] & 63)};
  return {uint8_t((packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4),
          uint8_t((packed[g + 4] >> 4) | (packed[g] >> 6) << 4)};
}

/// Into zeroed bytes.
inline void pack_scale_min(uint8_t* packed, int g, int scale, int minimum) {
  if (g < 4) {
    packed[g] |= uint8_t(scale);
    packed[g + 4] |= uint8_t(minimum);
    return;
  }
  packed[g + 4] = uint8_t((scale & 15) | (minimum & 15) << 4);
  packed[g - 4] |= uint8_t((scale >> 4) << 6);
  packed[g] |= uint8_t((minimum >> 4) << 6);
}

}  // namespace ef
