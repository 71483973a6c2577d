// MXFP4 (OCP Microscaling specification): 32 E2M1 numbers under one power of two.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ef {

struct BlockMXFP4 {
  static constexpr int kElements = 32;
  uint8_t e;       ///< E8M0 scale: 2^(e - 127), 255 is NaN
  uint8_t qs[16];  ///< low nibble of byte j: element j; high nibble: element j + 16
};
static_assert(sizeof(BlockMXFP4) == 17);

/// Twice the E2M1 values (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives): integers, to go with e8m0_half_to_f32.
inline constexpr signed char kE2M1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void decode(const BlockMXFP4& b, float* out);
/// Non-finite input: see finite_or_zero in block.h.
void encode(const float* in, BlockMXFP4& b);

/// Hugging Face's gpt-oss layout to blocks: `nibbles` (tensor `_blocks`) has 16 bytes per 32 elements, byte i holding
/// elements 2i (low nibble) and 2i + 1 (high nibble); `scales` (tensor `_scales`) has one E8M0 byte. Exact.
void repack_mxfp4(const uint8_t* nibbles, const uint8_t* scales, std::byte* blocks, int64_t block_count);
/// The way back.
void unpack_mxfp4(const std::byte* blocks, uint8_t* nibbles, uint8_t* scales, int64_t block_count);

}  // namespace ef
