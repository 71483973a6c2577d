// Exact conversions between float32 and the small scalar types that checkpoints use. To the small type: round to
// nearest, ties to even; NaN stays NaN (quiet, sign and upper payload kept). The functions are static on purpose:
// kernels compiled for wider instruction sets must not lend their copy to baseline code.
#pragma once
#include <bit>
#include <cstdint>
#include <limits>

namespace ef {

/// IEEE binary16, subnormals, infinities and NaN included.
static inline float f16_to_f32(uint16_t h) {
  const uint32_t magnitude = h & 0x7fffu;
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  uint32_t bits = (magnitude << 13) + 0x38000000u;                   // normal: exponent bias 15 -> 127
  if (magnitude >= 0x7c00u) bits = (magnitude << 13) | 0x7f800000u;  // infinity or NaN
  if (magnitude < 0x0400u) bits = std::bit_cast<uint32_t>(float(int(magnitude)) * 0x1p-24f);  // zero or subnormal
  return std::bit_cast<float>(bits | sign);
}

/// Values that round past 65504 become infinity.
static inline uint16_t f32_to_f16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // from 65520 on
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5, whose last place is 2^-24, rounds to a subnormal's last place.
    return uint16_t(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u));
  }
  magnitude += 0x0fffu + ((magnitude >> 13) & 1u);
  return uint16_t(sign | ((magnitude - 0x38000000u) >> 13));
}

static inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(uint32_t(h) << 16); }

/// Values that round past the largest bfloat16 become infinity.
static inline uint16_t f32_to_bf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline constexpr float kE4M3Max = 448.0f;

/// FP8 E4M3 "fn" (OCP 8-bit floating point specification): no infinity, 0x7f and 0xff are NaN, largest value 448.
static inline float e4m3_to_f32(uint8_t v) {
  const uint32_t magnitude = v & 0x7fu;
  const uint32_t sign = uint32_t(v & 0x80u) << 24;
  uint32_t bits = (magnitude << 20) + 0x3c000000u;  // normal: exponent bias 7 -> 127
  if (magnitude == 0x7fu) bits = 0x7fc00000u;       // NaN
  if (magnitude < 0x08u) bits = std::bit_cast<uint32_t>(float(int(magnitude)) * 0x1p-9f);  // zero or subnormal
  return std::bit_cast<float>(bits | sign);
}

/// Finite values past 448 saturate; infinity, which the type lacks, becomes NaN.
static inline uint8_t f32_to_e4m3(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint8_t sign = uint8_t((bits >> 24) & 0x80u);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return uint8_t(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return uint8_t(sign | 0x7eu);
  if (magnitude < 0x3c800000u) {
    // Below 2^-6: 2^14 has its last place at 2^-9, a subnormal's.
    return uint8_t(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 16384.0f) - 0x46800000u));
  }
  magnitude += 0x7ffffu + ((magnitude >> 20) & 1u);
  return uint8_t(sign | ((magnitude - 0x3c000000u) >> 20));
}

/// E8M0 (OCP Microscaling specification): 2^(e - 127); 0 is 2^-127 (a float32 subnormal), 255 is NaN.
static inline float e8m0_to_f32(uint8_t e) {
  if (e == 0) return 0x1p-127f;
  if (e == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(uint32_t(e) << 23);
}

/// Half of the above, exactly: for element tables that hold doubled integers.
static inline float e8m0_half_to_f32(uint8_t e) {
  if (e < 2) return std::bit_cast<float>(0x00200000u << e);
  if (e == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(uint32_t(e - 1) << 23);
}

}  // namespace ef
