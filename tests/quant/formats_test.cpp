// The contract of every storage format with arithmetic: one suite, one instance a row of the table.
#include "expertflow/quant/formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "expertflow/base/errors.h"

namespace ef {

/// For gtest, which looks beside the type.
void PrintTo(const FormatInfo& f, std::ostream* out) { *out << f.name; }

namespace {

const std::string kFixtures = std::string(EF_FIXTURES) + "/quant/";

std::vector<std::byte> read_file(const std::string& name) {
  std::ifstream in(kFixtures + name, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + kFixtures + name);
  std::vector<char> bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<std::byte> out(bytes.size());
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

std::vector<float> read_floats(const std::string& name) {
  const std::vector<std::byte> bytes = read_file(name);
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

const nlohmann::json& index() {
  static const nlohmann::json json = nlohmann::json::parse(std::ifstream(kFixtures + "index.json"));
  return json;
}

/// Error relative to the root mean square of the original, as index.json records it.
double relative_rmse(const std::vector<float>& original, const std::vector<float>& restored) {
  double error = 0, power = 0;
  for (size_t i = 0; i < original.size(); ++i) {
    error += std::pow(double(original[i]) - restored[i], 2);
    power += std::pow(double(original[i]), 2);
  }
  return std::sqrt(error / power);
}

std::vector<std::byte> quantize(const FormatInfo& f, const std::vector<float>& x) {
  std::vector<std::byte> blocks(row_bytes(f.format, int64_t(x.size())));
  f.quantize(x.data(), blocks.data(), int64_t(x.size()));
  return blocks;
}

std::vector<float> dequantize(const FormatInfo& f, const std::vector<std::byte>& blocks) {
  std::vector<float> x(blocks.size() / size_t(f.block_bytes) * size_t(f.block_elements));
  f.dequantize(blocks.data(), x.data(), int64_t(x.size()));
  return x;
}

std::vector<float> round_trip(const FormatInfo& f, const std::vector<float>& x) {
  return dequantize(f, quantize(f, x));
}

bool is_block_format(const FormatInfo& f) { return f.block_elements > 1; }

class FormatContract : public testing::TestWithParam<FormatInfo> {};
class BlockFormatContract : public FormatContract {};

// The scalar formats have an exhaustive test in scalars_test.cpp instead.
TEST_P(BlockFormatContract, DequantizesTheFixtureExactly) {
  const FormatInfo& f = GetParam();
  const std::string name(f.name);
  ASSERT_TRUE(index().contains(name));
  EXPECT_EQ(index()[name]["ggml_type"], f.ggml_type);
  EXPECT_EQ(index()[name]["block_elements"], f.block_elements);
  EXPECT_EQ(index()[name]["block_bytes"], f.block_bytes);
  const std::vector<float> expected = read_floats(name + ".f32");
  const std::vector<float> found = dequantize(f, read_file(name + ".bin"));
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i])) << "element " << i;
  }
}

TEST_P(FormatContract, QuantizesAboutAsWellAsTheReference) {
  const FormatInfo& f = GetParam();
  const std::vector<float> source = read_floats("source.f32");
  // Scalars: half a unit in the last place, uniformly distributed, bounds the relative error; the source is within
  // their normal range.
  const double bound = is_block_format(f)          ? 1.05 * index()[std::string(f.name)]["rmse"].get<double>()
                       : f.format == Format::kF32  ? 0
                       : f.format == Format::kF16  ? 0x1p-11
                       : f.format == Format::kBF16 ? 0x1p-8
                                                   : 0x1p-4;
  const double error = relative_rmse(source, round_trip(f, source));
  EXPECT_LE(error, bound);
  RecordProperty("relative_rmse", std::to_string(error));
}

TEST_P(FormatContract, WithstandsOtherDistributions) {
  const FormatInfo& f = GetParam();
  std::mt19937 rng(7);
  auto uniform = [&] { return float(rng()) * 0x1p-32f; };
  std::vector<float> positive(2048), outliers(2048), mixed_scales(2048);
  for (size_t i = 0; i < 2048; ++i) {
    positive[i] = 1 + uniform();
    outliers[i] = (uniform() - 0.5f) * (i % 97 == 5 ? 64.0f : 1.0f);
    mixed_scales[i] = (uniform() - 0.5f) * std::ldexp(1.0f, int(i / 32 % 8) - 4);
  }
  // Numbers per step of the coarsest code: 2 bits leave a third of a group's range, the others at most a seventh.
  const double bound = f.format == Format::kQ2K ? 0.35 : f.format == Format::kQ3K ? 0.25 : 0.15;
  EXPECT_LT(relative_rmse(positive, round_trip(f, positive)), bound);
  EXPECT_LT(relative_rmse(outliers, round_trip(f, outliers)), bound);
  EXPECT_LT(relative_rmse(mixed_scales, round_trip(f, mixed_scales)), bound);
}

TEST_P(FormatContract, SecondRoundTripStaysClose) {
  const FormatInfo& f = GetParam();
  const std::vector<float> source = read_floats("source.f32");
  const std::vector<float> once = round_trip(f, source);
  const std::vector<float> twice = round_trip(f, once);
  if (!is_block_format(f) || f.format == Format::kQ8_0) {
    EXPECT_EQ(once, twice);
  } else {
    EXPECT_LE(relative_rmse(once, twice), relative_rmse(source, once));
  }
}

TEST_P(FormatContract, ZerosAreZeroBytesAndBack) {
  const FormatInfo& f = GetParam();
  const std::vector<float> restored = round_trip(f, std::vector<float>(512, 0.0f));
  EXPECT_EQ(restored, std::vector<float>(512, 0.0f));
  // Widening writes zero bytes for zero weights.
  const std::vector<std::byte> zero_bytes(row_bytes(f.format, 512));
  EXPECT_EQ(dequantize(f, zero_bytes), std::vector<float>(512, 0.0f));
}

TEST_P(FormatContract, ZeroBlockBesideOthersStaysZero) {
  const FormatInfo& f = GetParam();
  std::vector<float> x = read_floats("source.f32");
  std::fill_n(x.begin() + 256, 256, 0.0f);
  const std::vector<float> restored = round_trip(f, x);
  for (size_t i = 256; i < 512; ++i) ASSERT_EQ(restored[i], 0.0f);
}

TEST_P(BlockFormatContract, HugeNumbersSaturateAndStayFinite) {
  const FormatInfo& f = GetParam();
  std::vector<float> x = read_floats("source.f32");
  x.resize(512);
  for (float& v : x) v *= 1e37f;
  x[3] = 3.4e38f;
  x[300] = -3.4e38f;
  const std::vector<float> restored = round_trip(f, x);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(std::isfinite(restored[i])) << i;
  // Past what a binary16 scale and the codes reach (Q6_K: 65504 * 128 * 32) only the order of magnitude is left; MXFP4
  // reaches 2^127.
  const float least = f.format == Format::kMXFP4 ? 0x1p127f : 65503.0f;
  EXPECT_GT(restored[3], least);
  EXPECT_LT(restored[300], -least);
}

TEST_P(FormatContract, TinyNumbersStayTiny) {
  const FormatInfo& f = GetParam();
  for (float scale : {1e-5f, 1e-6f, 1e-20f, 1e-36f, 1e-42f}) {
    std::vector<float> x = read_floats("source.f32");
    x.resize(512);
    for (float& v : x) v *= scale / 0.01f;
    const std::vector<float> restored = round_trip(f, x);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(std::isfinite(restored[i]));
      // No number may grow past four times the group's peak (5 sigma), or past one step of a binary16 scale.
      ASSERT_LE(std::abs(restored[i]), std::max(20.0 * scale, 128 * 0x1p-24)) << scale << " " << i;
    }
  }
}

std::vector<float> with_non_finite() {
  std::vector<float> x(256, 0.0f);
  x[0] = std::numeric_limits<float>::quiet_NaN();
  x[1] = std::numeric_limits<float>::infinity();
  x[2] = -x[1];
  x[3] = 1;
  return x;
}

TEST_P(BlockFormatContract, NaNCountsAsZeroAndInfinityAsTheLargestFloat) {
  const FormatInfo& f = GetParam();
  std::vector<float> same = with_non_finite();
  same[0] = 0;
  same[1] = std::numeric_limits<float>::max();
  same[2] = -same[1];
  EXPECT_EQ(quantize(f, with_non_finite()), quantize(f, same));
  for (float v : round_trip(f, with_non_finite())) EXPECT_TRUE(std::isfinite(v));
}

class ScalarFormatContract : public FormatContract {};

TEST_P(ScalarFormatContract, NonFiniteStaysNonFinite) {
  const std::vector<float> restored = round_trip(GetParam(), with_non_finite());
  EXPECT_TRUE(std::isnan(restored[0]));
  EXPECT_FALSE(std::isfinite(restored[1]));
  EXPECT_FALSE(std::isfinite(restored[2]));
  EXPECT_EQ(restored[3], 1);
}

TEST_P(FormatContract, ReadsAndWritesWithoutAlignment) {
  const FormatInfo& f = GetParam();
  const std::vector<float> source = read_floats("source.f32");
  const std::vector<std::byte> blocks = quantize(f, source);
  std::vector<std::byte> shifted(blocks.size() + 1);
  f.quantize(source.data(), shifted.data() + 1, int64_t(source.size()));
  EXPECT_TRUE(std::equal(blocks.begin(), blocks.end(), shifted.begin() + 1));
  std::vector<float> restored(source.size());
  f.dequantize(shifted.data() + 1, restored.data(), int64_t(source.size()));
  EXPECT_EQ(restored, dequantize(f, blocks));
}

// Files may hold any bytes: nothing is undefined, every element is written, and the same every time.
TEST_P(FormatContract, DecodesArbitraryBytes) {
  const FormatInfo& f = GetParam();
  std::mt19937 rng(11);
  std::vector<std::byte> blocks(row_bytes(f.format, 256 * 64));
  for (std::byte& b : blocks) b = std::byte(uint8_t(rng()));
  std::vector<uint32_t> first(256 * 64), second(256 * 64);
  auto decode_over = [&](float sentinel, std::vector<uint32_t>& bits) {
    std::vector<float> out(256 * 64, sentinel);
    f.dequantize(blocks.data(), out.data(), int64_t(out.size()));
    std::memcpy(bits.data(), out.data(), out.size() * sizeof(float));
  };
  decode_over(1.0f, first);
  decode_over(-3.0f, second);
  EXPECT_EQ(first, second);
}

TEST_P(FormatContract, RowsOfAMatrix) {
  const FormatInfo& f = GetParam();
  const std::vector<float> source = read_floats("source.f32");
  const std::vector<std::byte> blocks = quantize(f, source);
  const std::vector<float> all = dequantize(f, blocks);
  MatrixView w{f.format, 24, 256, blocks.data()};
  EXPECT_EQ(w.bytes(), blocks.size());
  std::vector<float> row(256);
  for (int64_t r : {0, 7, 23}) {
    dequantize_row(w, r, row.data());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), all.begin() + r * 256));
  }
}

std::vector<FormatInfo> with_arithmetic(bool scalars, bool blocks) {
  std::vector<FormatInfo> out;
  for (const FormatInfo& f : all_formats()) {
    if (f.dequantize && (is_block_format(f) ? blocks : scalars)) out.push_back(f);
  }
  return out;
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(All, FormatContract, testing::ValuesIn(with_arithmetic(true, true)), kName);
INSTANTIATE_TEST_SUITE_P(All, BlockFormatContract, testing::ValuesIn(with_arithmetic(false, true)), kName);
INSTANTIATE_TEST_SUITE_P(All, ScalarFormatContract, testing::ValuesIn(with_arithmetic(true, false)), kName);

TEST(FormatTable, HasArithmeticForFourScalarsAndThirteenBlocks) {
  EXPECT_EQ(with_arithmetic(true, false).size(), 4u);
  EXPECT_EQ(with_arithmetic(false, true).size(), 13u);
  EXPECT_EQ(all_formats().size(), size_t(Format::kCount));
  EXPECT_FALSE(has_arithmetic(Format::kI32));
  EXPECT_EQ(format_info(Format::kU8).quantize, nullptr);
}

TEST(FormatTable, FindsByNameNumberAndDtype) {
  for (const FormatInfo& f : all_formats()) {
    EXPECT_EQ(find_format(f.name), &format_info(f.format));
    if (f.ggml_type >= 0) {
      EXPECT_EQ(find_ggml_type(f.ggml_type), &format_info(f.format));
    }
    if (!f.safetensors_dtype.empty()) {
      EXPECT_EQ(find_safetensors_dtype(f.safetensors_dtype), &format_info(f.format));
    }
  }
  EXPECT_EQ(find_format("q4_k")->format, Format::kQ4K);
  EXPECT_EQ(find_format("Q4"), nullptr);
  EXPECT_EQ(find_format(""), nullptr);
  for (int64_t unknown : {-1ll, 4ll, 5ll, 9ll, 1000ll, 1ll << 40})
    EXPECT_EQ(find_ggml_type(unknown), nullptr) << unknown;
  EXPECT_EQ(find_safetensors_dtype(""), nullptr);
  EXPECT_EQ(find_safetensors_dtype("F8_E5M2"), nullptr);
}

TEST(FormatTable, RowBytesAtTheLargestSizes) {
  EXPECT_EQ(row_bytes(Format::kQ6K, 7168), 28u * 210);
  EXPECT_EQ(row_bytes(Format::kMXFP4, 2880), 90u * 17);
  EXPECT_EQ(row_bytes(Format::kF32, int64_t{1} << 40), uint64_t{1} << 42);
}

}  // namespace
}  // namespace ef
