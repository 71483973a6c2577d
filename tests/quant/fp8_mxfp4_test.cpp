#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "expertflow/quant/formats.h"
#include "expertflow/quant/mxfp4.h"
#include "expertflow/quant/scalars.h"

namespace ef {
namespace {

std::byte byte(int v) { return std::byte(uint8_t(v)); }

// 160 x 144 has 2 x 2 scale blocks: 128 and 32 rows, 128 and 16 columns.
TEST(Fp8BlockScales, B7_EdgeBlocksAreCropped) {
  constexpr int64_t kRows = 160, kCols = 144;
  std::vector<std::byte> data(kRows * kCols, byte(0x38));  // 1.0
  data[0] = byte(0x40);                                    // 2.0
  data[127 * kCols + 128] = byte(0x30);                    // 0.5
  data[128 * kCols + 127] = byte(0xb8);                    // -1.0
  data[159 * kCols + 143] = byte(0x7e);                    // 448
  const std::array<float, 4> scales{3, 5, 7, 11};
  const MatrixView w{Format::kF8E4M3, kRows, kCols, data.data(), scales.data()};
  std::vector<float> row(kCols);

  dequantize_row(w, 0, row.data());
  EXPECT_EQ(row[0], 6);
  EXPECT_EQ(row[1], 3);
  EXPECT_EQ(row[127], 3);
  EXPECT_EQ(row[128], 5);
  EXPECT_EQ(row[143], 5);
  dequantize_row(w, 127, row.data());
  EXPECT_EQ(row[127], 3);
  EXPECT_EQ(row[128], 2.5f);
  dequantize_row(w, 128, row.data());
  EXPECT_EQ(row[0], 7);
  EXPECT_EQ(row[127], -7);
  EXPECT_EQ(row[128], 11);
  dequantize_row(w, 159, row.data());
  EXPECT_EQ(row[142], 11);
  EXPECT_EQ(row[143], 4928);
}

TEST(Fp8BlockScales, WithoutScalesTheFactorIsOne) {
  const std::array<std::byte, 2> data{byte(0x38), byte(0xc0)};
  const MatrixView w{Format::kF8E4M3, 1, 2, data.data()};
  std::array<float, 2> row{};
  dequantize_row(w, 0, row.data());
  EXPECT_EQ(row[0], 1);
  EXPECT_EQ(row[1], -2);
}

std::vector<float> decode_mxfp4(uint8_t e) {
  BlockMXFP4 b{};
  b.e = e;
  for (int j = 0; j < 16; ++j) b.qs[j] = uint8_t(j | (15 - j) << 4);
  std::vector<float> out(32);
  decode(b, out.data());
  return out;
}

// The sixteen E2M1 numbers from the OCP Microscaling specification.
constexpr double kE2M1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

TEST(Mxfp4, EveryScaleAndCode) {
  for (int e = 0; e < 255; ++e) {
    const std::vector<float> out = decode_mxfp4(uint8_t(e));
    for (int j = 0; j < 16; ++j) {
      ASSERT_EQ(out[size_t(j)], float(std::ldexp(kE2M1[j], e - 127))) << e << " " << j;
      ASSERT_EQ(out[size_t(j) + 16], float(std::ldexp(kE2M1[15 - j], e - 127))) << e << " " << j;
    }
  }
  for (float v : decode_mxfp4(255)) EXPECT_TRUE(std::isnan(v));
}

TEST(Mxfp4, RoundsTiesToEvenCodes) {
  std::vector<float> in(32, 0.0f), out(32);
  // The unit is 1: the peak 4 keeps the power of two.
  const float inputs[] = {4, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 0.26f, -0.75f, -2.6f};
  const float expected[] = {4, 0, 1, 1, 2, 2, 4, 0.5f, -1, -3};
  std::copy(std::begin(inputs), std::end(inputs), in.begin());
  BlockMXFP4 b;
  encode(in.data(), b);
  EXPECT_EQ(b.e, 127);
  decode(b, out.data());
  for (size_t i = 0; i < std::size(expected); ++i) EXPECT_EQ(out[i], expected[i]) << inputs[i];
}

TEST(Mxfp4, KeepsRepresentableNumbersExactly) {
  for (int e : {0, 1, 2, 100, 127, 200, 252}) {
    const std::vector<float> in = decode_mxfp4(uint8_t(e));
    BlockMXFP4 b;
    std::vector<float> out(32);
    encode(in.data(), b);
    decode(b, out.data());
    EXPECT_EQ(in, out) << e;
  }
}

TEST(Mxfp4, RepacksTheHubLayout) {
  // Two blocks whose element i has code (i + n) % 16.
  std::array<uint8_t, 32> nibbles{};
  for (int i = 0; i < 64; ++i) nibbles[size_t(i / 2)] |= uint8_t(((i % 32 + i / 32) % 16) << (4 * (i % 2)));
  const std::array<uint8_t, 2> scales{127, 130};
  std::vector<std::byte> blocks(34);
  repack_mxfp4(nibbles.data(), scales.data(), blocks.data(), 2);
  EXPECT_EQ(blocks[0], byte(127));
  EXPECT_EQ(blocks[1], byte(0x00));  // elements 0 and 16
  EXPECT_EQ(blocks[2], byte(0x11));  // elements 1 and 17
  EXPECT_EQ(blocks[17], byte(130));
  std::vector<float> out(64);
  format_info(Format::kMXFP4).dequantize(blocks.data(), out.data(), 64);
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(out[size_t(i)], float(kE2M1[(i % 32 + i / 32) % 16] * (i < 32 ? 1 : 8))) << i;
  }
  std::array<uint8_t, 32> nibbles_back{};
  std::array<uint8_t, 2> scales_back{};
  unpack_mxfp4(blocks.data(), nibbles_back.data(), scales_back.data(), 2);
  EXPECT_EQ(nibbles_back, nibbles);
  EXPECT_EQ(scales_back, scales);
}

}  // namespace
}  // namespace ef
