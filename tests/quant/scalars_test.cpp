#include "expertflow/quant/scalars.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace ef {
namespace {

/// The value of a small float from its definition: sign, exponent field, fraction.
double by_definition(unsigned bits, int exponent_bits, int fraction_bits, bool has_infinity) {
  const unsigned fraction = bits & ((1u << fraction_bits) - 1);
  const int field = int(bits >> fraction_bits & ((1u << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1 : 1;
  if (has_infinity && field == (1 << exponent_bits) - 1) return fraction ? NAN : sign * INFINITY;
  if (!has_infinity && (bits & 0x7f) == 0x7f) return NAN;
  const double significand =
      field ? 1 + std::ldexp(double(fraction), -fraction_bits) : std::ldexp(double(fraction), -fraction_bits);
  return sign * std::ldexp(significand, std::max(field, 1) - bias);
}

void expect_same(double expected, float found, unsigned bits) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(found)) << bits;
  } else {
    ASSERT_EQ(expected, double(found)) << bits;
    ASSERT_EQ(std::signbit(expected), std::signbit(found)) << bits;
  }
}

TEST(Scalars, EveryF16) {
  for (unsigned h = 0; h < 65536; ++h) {
    const float f = f16_to_f32(uint16_t(h));
    expect_same(by_definition(h, 5, 10, true), f, h);
    if (std::isnan(f)) {
      ASSERT_EQ(f32_to_f16(f) & ~0x200u, h & ~0x200u);  // payload and sign kept, quiet
      ASSERT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f))));
    } else {
      ASSERT_EQ(f32_to_f16(f), h);
    }
  }
}

TEST(Scalars, EveryBF16) {
  for (unsigned h = 0; h < 65536; ++h) {
    const float f = bf16_to_f32(uint16_t(h));
    expect_same(by_definition(h, 8, 7, true), f, h);
    if (std::isnan(f)) {
      ASSERT_EQ(f32_to_bf16(f), h | 0x40u);
    } else {
      ASSERT_EQ(f32_to_bf16(f), h);
    }
  }
}

TEST(Scalars, EveryE4M3) {
  for (unsigned v = 0; v < 256; ++v) {
    const float f = e4m3_to_f32(uint8_t(v));
    expect_same(by_definition(v, 4, 3, false), f, v);
    ASSERT_EQ(f32_to_e4m3(f), v);
  }
  EXPECT_EQ(e4m3_to_f32(0x7e), 448);
  EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9f);
}

TEST(Scalars, EveryE8M0) {
  EXPECT_EQ(e8m0_to_f32(0), 0x1p-127f);
  EXPECT_EQ(e8m0_half_to_f32(0), 0x1p-128f);
  EXPECT_EQ(e8m0_to_f32(127), 1);
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
  EXPECT_TRUE(std::isnan(e8m0_half_to_f32(255)));
  for (int e = 0; e < 255; ++e) {
    ASSERT_EQ(e8m0_to_f32(uint8_t(e)), std::ldexp(1.0f, e - 127));
    ASSERT_EQ(e8m0_half_to_f32(uint8_t(e)), std::ldexp(1.0f, e - 128));
  }
}

/// Between neighbours a < b of a small type: below the middle gives a, above it b, the middle the even one.
template <class Small>
void check_rounding(unsigned code, float (*widen)(Small), Small (*narrow)(float)) {
  const float a = widen(Small(code)), b = widen(Small(code + 1));
  const float middle = float((double(a) + b) / 2);  // exact: one more bit
  const Small even = Small(code % 2 ? code + 1 : code);
  ASSERT_EQ(narrow(middle), even) << code;
  ASSERT_EQ(narrow(std::nextafter(middle, a)), code) << code;
  ASSERT_EQ(narrow(std::nextafter(middle, b)), code + 1) << code;
  ASSERT_EQ(narrow(-middle) & ((1u << (8 * sizeof(Small) - 1)) - 1), even) << code;
}

TEST(Scalars, RoundToNearestEven) {
  for (unsigned h = 0; h < 0x7bff; ++h) check_rounding<uint16_t>(h, f16_to_f32, f32_to_f16);
  for (unsigned h = 1; h < 0x7f7f; ++h) check_rounding<uint16_t>(h, bf16_to_f32, f32_to_bf16);
  for (unsigned v = 0; v < 0x7e; ++v) check_rounding<uint8_t>(v, e4m3_to_f32, f32_to_e4m3);
}

TEST(Scalars, OverflowAndUnderflow) {
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-INFINITY), 0xfc00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0);
  EXPECT_EQ(f32_to_f16(-0x1.000002p-25f), 0x8001);
  EXPECT_EQ(f32_to_bf16(3.4e38f), 0x7f80);
  EXPECT_EQ(f32_to_bf16(3.3895314e38f), 0x7f7f);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7f800001u)),
            0x7fc0);  // a NaN whose payload lies below does not become infinity
  EXPECT_EQ(f32_to_f16(std::bit_cast<float>(0xff800001u)), 0xfe00);
  EXPECT_EQ(f32_to_e4m3(448.0f), 0x7e);
  EXPECT_EQ(f32_to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(f32_to_e4m3(-463.0f), 0xfe);
  EXPECT_EQ(f32_to_e4m3(INFINITY), 0x7f);
  EXPECT_EQ(f32_to_e4m3(-INFINITY), 0xff);
  EXPECT_EQ(f32_to_e4m3(0x1p-10f), 0);
  EXPECT_EQ(f32_to_e4m3(0x1.8p-10f), 1);
  EXPECT_EQ(f32_to_e4m3(-0.0f), 0x80);
}

}  // namespace
}  // namespace ef
