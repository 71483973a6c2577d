// What every block format shares: unaligned access to blocks, and the checks on numbers that enter a quantiser.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "expertflow/quant/scalars.h"

namespace ef {

/// A block as declared beside its format: all members are bytes or 16-bit words, little-endian, without padding.
/// Blocks in files have no alignment, so they are copied, never cast.
template <class Block>
Block load_block(const std::byte* blocks, int64_t index) {
  Block b;
  std::memcpy(&b, blocks + index * int64_t(sizeof(Block)), sizeof(Block));
  return b;
}

template <class Block>
void store_block(std::byte* blocks, int64_t index, const Block& b) {
  std::memcpy(blocks + index * int64_t(sizeof(Block)), &b, sizeof(Block));
}

/// Block formats hold finite numbers only: NaN becomes 0, infinities the largest finite number of their sign.
static inline float finite_or_zero(float x) {
  if (std::isnan(x)) return 0.0f;
  return std::clamp(x, -std::numeric_limits<float>::max(), std::numeric_limits<float>::max());
}

/// A block scale as binary16, saturating at 65504: an infinite scale would turn the zeros of a block into NaN.
static inline uint16_t scale_to_f16(double scale) { return f32_to_f16(float(std::clamp(scale, -65504.0, 65504.0))); }

/// To the nearest integer, ties to even, for |v| < 2^51: the sum's last place is 1. Cheaper than a call of nearbyint.
static inline double round_to_even(double v) { return (v + 0x1.8p52) - 0x1.8p52; }

/// round(x / scale) clamped to [lo, hi]; 0 clamped where the scale is 0.
static inline int quantize_clamped(double x, double scale, int lo, int hi) {
  if (scale == 0) return std::clamp(0, lo, hi);
  return int(round_to_even(std::clamp(x / scale, double(lo), double(hi))));
}

}  // namespace ef
