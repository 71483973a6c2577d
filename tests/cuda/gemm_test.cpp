// gemm() and routed_gemm() against doubles computed from dequantised weights. Tolerances follow from the rounding of
// both factors to 16 bits: kUnit relative, and for single results the sum of all roundings at their worst.
#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "expertflow/backend/cuda/device/fast.h"
#include "expertflow/backend/cuda/device/group.cuh"
#include "expertflow/quant/formats.h"
#include "expertflow/quant/scalars.h"
#include "tests/cuda/device_memory.h"

namespace ef::cuda::testing {
namespace {

constexpr double kHalf = 0x1p-11, kBrain = 0x1p-9;  // relative rounding
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Random = std::mt19937;

std::vector<float> normal(Random& random, int64_t count, float deviation = 1.f) {
  std::normal_distribution<float> d(0.f, deviation);
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = d(random);
  return v;
}

const FormatInfo& info(Fmt f) { return format_info(Format(f)); }

void put_half(uint8_t* at, float v) {
  const uint16_t h = f32_to_f16(v);
  std::memcpy(at, &h, 2);
}

// Blocks of random bits, so that every code occurs, with float16 fields that keep weights near 0.05.
void make_block(Random& random, Fmt f, uint8_t* b) {
  std::uniform_real_distribution<float> share(0.5f, 1.5f);
  for (int i = 0; i < info(f).block_bytes; ++i) b[i] = uint8_t(random());
  switch (f) {
    case Fmt::kF8E4M3:
      if ((b[0] & 0x7f) == 0x7f) b[0] = 0;
      break;
    case Fmt::kQ8_0:
    case Fmt::kIQ4NL:
      put_half(b, 7e-4f * share(random));
      break;
    case Fmt::kQ4_0:
    case Fmt::kQ5_0:
      put_half(b, 8e-3f * share(random));
      break;
    case Fmt::kQ4_1:
    case Fmt::kQ5_1:
      put_half(b, 8e-3f * share(random)), put_half(b + 2, -0.06f * share(random));
      break;
    case Fmt::kQ2K:
      put_half(b + 80, 4e-3f * share(random)), put_half(b + 82, 6e-3f * share(random));
      break;
    case Fmt::kQ3K:
      put_half(b + 108, 1e-3f * share(random));
      break;
    case Fmt::kQ4K:
    case Fmt::kQ5K:
      put_half(b, 3e-4f * share(random)), put_half(b + 2, 2e-3f * share(random));
      break;
    case Fmt::kQ6K:
      put_half(b + 208, 4e-5f * share(random));
      break;
    case Fmt::kIQ4XS:
      put_half(b, 4e-5f * share(random));
      break;
    case Fmt::kMXFP4:
      b[0] = uint8_t(119 + b[0] % 4);
      break;
    default: {
      const float v = 0.05f * (share(random) - 1.f);
      if (f == Fmt::kF32) std::memcpy(b, &v, 4);
      if (f == Fmt::kF16) put_half(b, v);
      const uint16_t brain = f32_to_bf16(v);
      if (f == Fmt::kBF16) std::memcpy(b, &brain, 2);
    }
  }
}

// A matrix on the host and on the device. `shift`: bytes by which its rows begin off a 256-byte boundary.
struct Matrix {
  Fmt format;
  int64_t n, cols;
  std::vector<float> values, bias;
  OnDevice<uint8_t> data;
  OnDevice<float> scales, biases;
  int shift;

  static std::vector<uint8_t> bytes(Random& random, Fmt f, int64_t n, int64_t cols, int shift) {
    std::vector<uint8_t> all(size_t(shift) + size_t(n) * row_bytes(Format(f), cols));
    for (size_t at = size_t(shift); at < all.size(); at += size_t(info(f).block_bytes)) make_block(random, f, &all[at]);
    return all;
  }
  static std::vector<float> factors(Random& random, Fmt f, int64_t n, int64_t cols) {
    if (f != Fmt::kF8E4M3) return {};
    std::vector<float> all(size_t((n + 127) / 128 * ((cols + 127) / 128)));
    for (float& v : all) v = 3e-4f * std::uniform_real_distribution<float>(0.5f, 1.5f)(random);
    return all;
  }
  Matrix(Random& random, Fmt f, int64_t n, int64_t cols, bool with_bias = false, int shift = 0)
      : Matrix(f, n, cols, bytes(random, f, n, cols, shift), factors(random, f, n, cols),
               with_bias ? normal(random, n) : std::vector<float>(), shift) {}
  Matrix(Fmt f, int64_t n_, int64_t cols_, const std::vector<uint8_t>& stored, const std::vector<float>& factor,
         const std::vector<float>& b, int by)
      : format(f),
        n(n_),
        cols(cols_),
        values(size_t(n_ * cols_)),
        bias(b),
        data(stored),
        scales(factor),
        biases(b),
        shift(by) {
    MatrixView view;
    view.format = Format(f), view.rows = n, view.cols = cols;
    view.data = reinterpret_cast<const std::byte*>(stored.data() + shift);
    view.scales = factor.empty() ? nullptr : factor.data();
    for (int64_t r = 0; r < n; ++r) dequantize_row(view, r, &values[size_t(r * cols)]);
  }
  Weights weights() const {
    Weights w;
    w.data = data.data() + shift;
    if (format == Fmt::kF8E4M3) w.scales = scales.data();
    if (!bias.empty()) w.bias = biases.data();
    return w;
  }
  double unit() const { return format == Fmt::kBF16 ? kBrain : kHalf; }
  double bias_at(int64_t i) const { return bias.empty() ? 0. : double(bias[size_t(i)]); }

  double at(const double* x, int64_t i) const {
    double sum = 0;
    for (int64_t k = 0; k < cols; ++k) sum += x[k] * double(values[size_t(i * cols + k)]);
    return sum + bias_at(i);
  }
  // How far a computed at() may be away: x rounded once, weights twice (a scale, then the product), where a format
  // has minimums once more by as much as its largest weight; float32 sums; halves and floats below their normal range.
  double tolerance(const double* x, int64_t i) const {
    double products = 0, inputs = 0, most = 0, most_weight = 0, total = 0;
    for (int64_t k = 0; k < cols; ++k) {
      const double w = std::fabs(double(values[size_t(i * cols + k)]));
      products += std::fabs(x[k]) * w, inputs += std::fabs(x[k]), total += w;
      most = std::max(most, std::fabs(x[k])), most_weight = std::max(most_weight, w);
    }
    const bool minimums = format == Fmt::kQ2K || format == Fmt::kQ4K || format == Fmt::kQ5K;
    return 1.01 * (3 * unit() * products + (minimums ? unit() * most_weight * inputs : 0)) +
           double(cols + 4) * 0x1p-23 * products + 0x1p-30 * inputs + 0x1p-33 * most * total +
           0x1p-22 * std::fabs(bias_at(i)) + 0x1p-149;
  }
};

std::vector<double> doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

double relative_error(const std::vector<double>& out, const std::vector<double>& ref) {
  double wrong = 0, all = 0;
  for (size_t i = 0; i < ref.size(); ++i) wrong += (out[i] - ref[i]) * (out[i] - ref[i]), all += ref[i] * ref[i];
  return std::sqrt(wrong / all);
}

struct Dense {
  int64_t rows, n, cols;
};
std::string text(const Dense& d) {
  return std::to_string(d.rows) + " x " + std::to_string(d.n) + " x " + std::to_string(d.cols);
}

// Every result within its own tolerance, and all together within what roundings that do not conspire leave.
void expect_product(const Matrix& m, const std::vector<float>& x, int64_t x_stride, int64_t rows,
                    const std::vector<float>& out, const std::string& where) {
  std::vector<double> got, want;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> row = doubles({x.begin() + r * x_stride, x.begin() + r * x_stride + m.cols});
    for (int64_t i = 0; i < m.n; ++i) {
      got.push_back(double(out[size_t(r * m.n + i)])), want.push_back(m.at(row.data(), i));
      ASSERT_NEAR(got.back(), want.back(), m.tolerance(row.data(), i)) << where << ", row " << r << ", output " << i;
    }
  }
  constexpr size_t kEnough = 100;  // fewer may happen to cancel
  if (want.size() < kEnough) return;
  EXPECT_LT(relative_error(got, want), 1.5 * m.unit()) << where;
}

void run_gemm(GemmParams& p) {
  const OnDevice<uint8_t> scratch(std::vector<uint8_t>(gemm_scratch(p), 0xff));
  p.scratch = scratch.data();
  ASSERT_EQ(gemm(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  scratch.read();  // nothing was written beside it
}

void test_dense(Random& random, Fmt f, const Dense& d, int shift = 0) {
  const std::string where = std::string(info(f).name) + " " + text(d);
  const Matrix m(random, f, d.n, d.cols, d.n % 2 == 0, shift);
  const std::vector<float> x = normal(random, d.rows * d.cols);
  const OnDevice<float> input(x), out(std::vector<float>(size_t(d.rows * d.n), kNan));
  GemmParams p;
  p.format = f, p.w = m.weights(), p.rows = d.rows, p.n = d.n, p.cols = d.cols;
  p.x = input.data(), p.x_stride = d.cols, p.out = out.data(), p.out_stride = d.n;
  run_gemm(p);
  expect_product(m, x, d.cols, d.rows, out.read(), where);
}

class Formats : public ::testing::TestWithParam<Fmt> {};
std::vector<Fmt> all_of_them() {
  std::vector<Fmt> all;
  for (int f = 0; f < int(Fmt::kCount); ++f) all.push_back(Fmt(f));
  return all;
}
std::string name_of(const ::testing::TestParamInfo<Fmt>& p) { return std::string(info(p.param).name); }
INSTANTIATE_TEST_SUITE_P(Gemm, Formats, ::testing::ValuesIn(all_of_them()), name_of);

// Sizes around those of tiles and steps. The last two take tiles of 128 rows on the emulated device.
TEST_P(Formats, Dense) {
  Random random(1);
  const int64_t block = info(GetParam()).block_elements;
  if (block == 1) {
    for (const Dense& d : {Dense{1, 5, 1}, Dense{3, 4, 7}, Dense{17, 40, 63}, Dense{33, 130, 136}, Dense{65, 20, 200},
                           Dense{130, 300, 72}})
      test_dense(random, GetParam(), d);
  } else {
    for (const Dense& d : {Dense{1, 5, block}, Dense{17, 40, 3 * block}, Dense{33, 130, block}, Dense{65, 20, block},
                           Dense{130, 300, block}})
      test_dense(random, GetParam(), d);
  }
}

// As far off a boundary as the format's blocks can be.
TEST_P(Formats, WeightsAnywhere) {
  Random random(2);
  const FormatInfo& f = info(GetParam());
  const int64_t cols = f.block_elements == 1 ? 75 : f.block_elements;
  for (int shift : {f.block_bytes, 3 * f.block_bytes}) test_dense(random, GetParam(), {20, 9, cols}, shift);
}

// Widths of several units of what a warp streams, the last one not whole where the format allows it.
TEST_P(Formats, FewRows) {
  Random random(21);
  const int64_t block = info(GetParam()).block_elements;
  const int64_t cols = block == 1 ? 643 : block == 32 ? 1312 : 1280;
  for (const int64_t rows : {7, 16, 29}) test_dense(random, GetParam(), {rows, 37, cols});
}

TEST(Gemm, AnyNumberOfRows) {
  Random random(3);
  for (int64_t rows = 1; rows <= 36; ++rows) test_dense(random, Fmt::kQ8_0, {rows, 6, 64});
  for (const int64_t rows : {47, 48, 49, 63, 64, 65, 96, 127, 128, 129, 144, 191, 200})
    for (const int64_t n : {6, 400}) test_dense(random, Fmt::kQ8_0, {rows, n, 32});
}

TEST(Gemm, MatricesThatShareTheirInput) {
  Random random(4);
  const int64_t rows = 19, cols = 256;
  const std::vector<float> x = normal(random, rows * cols);
  for (const auto& formats :
       {std::vector{Fmt::kQ4K, Fmt::kQ4K, Fmt::kQ6K}, std::vector{Fmt::kBF16, Fmt::kQ8_0, Fmt::kBF16},
        std::vector{Fmt::kQ8_0, Fmt::kQ8_0}, std::vector{Fmt::kF16, Fmt::kQ5K, Fmt::kF8E4M3}}) {
    const OnDevice<float> input(x);
    std::vector<std::unique_ptr<Matrix>> m;
    std::vector<std::unique_ptr<OnDevice<float>>> outs;
    for (size_t i = 0; i < formats.size(); ++i) {
      m.push_back(std::make_unique<Matrix>(random, formats[i], 130 + 7 * int64_t(i), cols, i != 1));
      outs.push_back(std::make_unique<OnDevice<float>>(std::vector<float>(size_t(rows * m[i]->n), kNan)));
    }
    GemmParams p;
    p.format = formats[0], p.w = m[0]->weights(), p.n = m[0]->n, p.out = outs[0]->data(), p.out_stride = p.n;
    p.rows = rows, p.cols = cols, p.x = input.data(), p.x_stride = cols;
    p.more = int(formats.size()) - 1;
    for (size_t i = 1; i < formats.size(); ++i) p.also[i - 1] = {formats[i], m[i]->weights(), m[i]->n, outs[i]->data()};
    run_gemm(p);
    for (size_t i = 0; i < formats.size(); ++i)
      expect_product(*m[i], x, cols, rows, outs[i]->read(), "matrix " + std::to_string(i));
  }
}

TEST(Gemm, AddsToRowsThatAreApart) {
  Random random(5);
  for (const int64_t gap : {1, 2}) {
    const int64_t rows = 21, n = 37, cols = 96, x_stride = cols + gap, out_stride = n + gap;
    const Matrix m(random, Fmt::kQ5_0, n, cols, true);
    const std::vector<float> x = normal(random, rows * x_stride), before = normal(random, rows * out_stride);
    const OnDevice<float> input(x), sum(before), out(std::vector<float>(1, 5.f));
    GemmParams p;
    p.format = m.format, p.w = m.weights(), p.rows = rows, p.n = n, p.cols = cols;
    p.x = input.data(), p.x_stride = x_stride, p.out = out.data(), p.out_stride = out_stride;
    p.add_to = sum.data(), p.add_scale = -0.75f;
    run_gemm(p);
    const std::vector<float> after = sum.read();
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> row = doubles({x.begin() + r * x_stride, x.begin() + r * x_stride + cols});
      for (int64_t i = 0; i < out_stride; ++i) {
        const size_t at = size_t(r * out_stride + i);
        if (i >= n) {
          ASSERT_EQ(after[at], before[at]) << "between rows";
          continue;
        }
        ASSERT_NEAR(double(after[at]), double(before[at]) - 0.75 * m.at(row.data(), i),
                    m.tolerance(row.data(), i) + 0x1p-22);
      }
    }
    EXPECT_EQ(out.read()[0], 5.f);
  }
}

TEST(Gemm, RowsOfAnyMagnitude) {
  Random random(6);
  const int64_t n = 24, cols = 64;
  const float sizes[] = {1e6f, 1e-30f, 1e30f, 1e-38f, 65504.f, 1e-6f, 0.f, 3e37f};
  const int64_t rows = int64_t(std::size(sizes));
  for (const Fmt f : {Fmt::kQ4_0, Fmt::kBF16, Fmt::kF32}) {
    const Matrix m(random, f, n, cols);
    std::vector<float> x = normal(random, rows * cols, 0.25f);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < cols; ++k) x[size_t(r * cols + k)] *= sizes[r];
    // One large number beside small ones: they may lose bits, but only as much as the large one's rounding.
    for (int64_t k = 1; k < cols; ++k) x[size_t(4 * cols + k)] *= 1e-6f;
    const OnDevice<float> input(x), out(std::vector<float>(size_t(rows * n), kNan));
    GemmParams p;
    p.format = f, p.w = m.weights(), p.rows = rows, p.n = n, p.cols = cols;
    p.x = input.data(), p.x_stride = cols, p.out = out.data(), p.out_stride = n;
    run_gemm(p);
    const std::vector<float> got = out.read();
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> row = doubles({x.begin() + r * cols, x.begin() + (r + 1) * cols});
      for (int64_t i = 0; i < n; ++i)
        ASSERT_NEAR(double(got[size_t(r * n + i)]), m.at(row.data(), i), m.tolerance(row.data(), i))
            << info(f).name << ", size " << sizes[r];
    }
  }
}

TEST(Gemm, WhatIsNotFiniteStaysInItsRow) {
  Random random(7);
  const int64_t rows = 5, n = 9, cols = 256;
  const Matrix m(random, Fmt::kQ6K, n, cols);
  std::vector<float> x = normal(random, rows * cols);
  x[cols + 17] = kNan, x[3 * cols + 64] = std::numeric_limits<float>::infinity();
  const OnDevice<float> input(x), out(std::vector<float>(size_t(rows * n), 1.f));
  GemmParams p;
  p.format = m.format, p.w = m.weights(), p.rows = rows, p.n = n, p.cols = cols;
  p.x = input.data(), p.x_stride = cols, p.out = out.data(), p.out_stride = n;
  run_gemm(p);
  const std::vector<float> got = out.read();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(std::isfinite(got[size_t(r * n + i)]), r != 1 && r != 3) << r;
}

TEST(Gemm, RefusesWhatItCannotDo) {
  GemmParams p;
  p.rows = 1, p.n = 1, p.cols = 1, p.more = 3;
  EXPECT_EQ(gemm(p, nullptr), cudaErrorInvalidValue);
  float sum = 0;
  p.more = 1, p.add_to = &sum;
  EXPECT_EQ(gemm(p, nullptr), cudaErrorInvalidValue);
  p.more = 0, p.rows = 0;
  EXPECT_EQ(gemm(p, nullptr), cudaSuccess);
}

// Choices by expert, against a stable sort on the host.
void test_group(Random& random, int64_t assignments, int experts, int tile_rows, int wrong) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < assignments; ++i) ids.push_back(int32_t(random() % unsigned(experts + wrong)) - wrong / 2);
  std::vector<int32_t> order;
  std::vector<std::vector<int32_t>> tiles;
  for (int e = 0; e < experts; ++e) {
    const size_t first = order.size();
    for (int64_t i = 0; i < assignments; ++i)
      if (ids[size_t(i)] == e) order.push_back(int32_t(i));
    for (size_t at = first; at < order.size(); at += size_t(tile_rows))
      tiles.push_back({e, int32_t(at), int32_t(std::min(order.size() - at, size_t(tile_rows)))});
  }
  const int64_t most = most_tiles(assignments, experts, tile_rows);
  ASSERT_LE(int64_t(tiles.size()), most);
  const OnDevice<int32_t> chosen(ids), counts(std::vector<int32_t>(size_t(experts), -1)),
      places(std::vector<int32_t>(size_t(assignments), -1)), totals(std::vector<int32_t>(2, -1));
  const OnDevice<Tile> made{std::vector<Tile>(static_cast<size_t>(most))};
  GroupParams p;
  p.ids = chosen.data(), p.assignments = assignments, p.experts = experts, p.tile_rows = tile_rows;
  p.counts = counts.data(), p.order = places.data(), p.tiles = made.data(), p.totals = totals.data();
  ASSERT_EQ(group(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(totals.read(), (std::vector<int32_t>{int32_t(tiles.size()), int32_t(order.size())}));
  std::vector<int32_t> found = places.read();
  found.resize(order.size());
  EXPECT_EQ(found, order);
  const std::vector<Tile> got = made.read();
  for (size_t i = 0; i < tiles.size(); ++i)
    ASSERT_EQ((std::vector<int32_t>{got[i].group, got[i].first, got[i].rows}), tiles[i]) << "tile " << i;
}

TEST(Group, OrdersChoices) {
  Random random(8);
  test_group(random, 1, 1, 64, 0);
  test_group(random, 77, 3, 64, 0);
  test_group(random, 2500, 5, 128, 4);
  test_group(random, 300, 40, 64, 2);
  test_group(random, 90, 1500, 64, 100);  // more experts than a block has threads
  test_group(random, 40, 7, 8, 3);
  test_group(random, 128, 1024, 8, 50);
  test_group(random, 129, 12, 8, 2);
}

struct Routed {
  int64_t rows = 12, hidden = 64, ffn = 64;
  int experts = 5, top_k = 2;
  Fmt gate = Fmt::kQ8_0, up = Fmt::kQ8_0, down = Fmt::kQ8_0;
  Act act = Act::kSilu;
  float size = 1.f;  // of x
  bool bias = false, add = false;
  std::vector<int32_t> ids = {};  // random and distinct where empty
};

double activated(Act act, double alpha, double limit, double g, double u) {
  switch (act) {
    case Act::kSilu:
      return g / (1 + std::exp(-g)) * u;
    case Act::kGelu:
      return 0.5 * g * std::erfc(-g / std::sqrt(2.)) * u;
    case Act::kGeluTanh:
      return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
    default:
      g = std::min(g, limit), u = std::clamp(u, -limit, limit);
      return (u + 1) * g / (1 + std::exp(-alpha * g));
  }
}

std::vector<int32_t> distinct(Random& random, int64_t rows, int experts, int top_k) {
  std::vector<int32_t> ids, all;
  for (int e = 0; e < experts; ++e) all.push_back(e);
  for (int64_t r = 0; r < rows; ++r) {
    std::shuffle(all.begin(), all.end(), random);
    ids.insert(ids.end(), all.begin(), all.begin() + top_k);
  }
  return ids;
}

void test_routed(Random& random, const Routed& c, const std::string& where) {
  constexpr double kAlpha = 1.702, kLimit = 7, kAddScale = 0.5;
  std::vector<std::unique_ptr<Matrix>> gate, up, down;
  std::vector<ExpertEntry> entries;
  for (int e = 0; e < c.experts; ++e) {
    gate.push_back(std::make_unique<Matrix>(random, c.gate, c.ffn, c.hidden, c.bias));
    up.push_back(std::make_unique<Matrix>(random, c.up, c.ffn, c.hidden, c.bias));
    down.push_back(std::make_unique<Matrix>(random, c.down, c.hidden, c.ffn, c.bias));
    entries.push_back({gate.back()->weights(), up.back()->weights(), down.back()->weights()});
  }
  const std::vector<int32_t> ids = c.ids.empty() ? distinct(random, c.rows, c.experts, c.top_k) : c.ids;
  const std::vector<float> x = normal(random, c.rows * c.hidden, c.size), shares = normal(random, c.rows * c.top_k),
                           before = normal(random, c.rows * c.hidden);
  const OnDevice<ExpertEntry> table(entries);
  const OnDevice<int32_t> chosen(ids);
  const OnDevice<float> input(x), weights(shares), sum(before),
      out(std::vector<float>(size_t(c.rows * c.hidden), kNan));
  RoutedParams p;
  p.rows = c.rows, p.hidden = c.hidden, p.ffn = c.ffn, p.experts = c.experts, p.top_k = c.top_k;
  p.gate_format = c.gate, p.up_format = c.up, p.down_format = c.down;
  p.table = table.data(), p.ids = chosen.data(), p.weights = weights.data(), p.x = input.data(), p.out = out.data();
  p.activation.kind = c.act, p.activation.alpha = float(kAlpha), p.activation.limit = float(kLimit);
  if (c.add) p.add_to = sum.data(), p.add_scale = float(kAddScale);
  const OnDevice<uint8_t> scratch(std::vector<uint8_t>(routed_gemm_scratch(p), 0xff));
  p.scratch = scratch.data();
  ASSERT_EQ(routed_gemm(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  scratch.read();

  // Three products whose errors add up. What an expert gives may cancel in the sum: errors are measured against the
  // sum of magnitudes.
  const double unit = std::max({gate[0]->unit(), up[0]->unit(), down[0]->unit()});
  const std::vector<float> got = (c.add ? sum : out).read(), again = (c.add ? out : sum).read();
  for (const float v : again) ASSERT_TRUE(c.add ? std::isnan(v) : std::isfinite(v)) << "the other output was written";
  for (int64_t r = 0; r < c.rows; ++r) {
    const std::vector<double> row = doubles({x.begin() + r * c.hidden, x.begin() + (r + 1) * c.hidden});
    std::vector<double> want(size_t(c.hidden), 0.), found;
    double magnitude = 0;
    for (int k = 0; k < c.top_k; ++k) {
      const int32_t id = ids[size_t(r * c.top_k + k)];
      if (id < 0 || id >= c.experts) continue;
      std::vector<double> h;
      for (int64_t i = 0; i < c.ffn; ++i)
        h.push_back(
            activated(c.act, kAlpha, kLimit, gate[size_t(id)]->at(row.data(), i), up[size_t(id)]->at(row.data(), i)));
      double squares = 0;
      for (int64_t i = 0; i < c.hidden; ++i) {
        const double v = double(shares[size_t(r * c.top_k + k)]) * down[size_t(id)]->at(h.data(), i);
        want[size_t(i)] += v, squares += v * v;
      }
      magnitude += std::sqrt(squares);
    }
    double wrong = 0;
    for (int64_t i = 0; i < c.hidden; ++i) {
      const size_t at = size_t(r * c.hidden + i);
      const double expected = c.add ? double(before[at]) + kAddScale * want[size_t(i)] : want[size_t(i)];
      const double e = double(got[at]) - expected;
      wrong += e * e;
    }
    const double rounding = c.add ? 0x1p-22 * std::sqrt(double(c.hidden)) * 4 : 0;
    ASSERT_LE(std::sqrt(wrong), 4 * unit * magnitude + rounding) << where << ", row " << r;
  }
}

TEST_P(Formats, Routed) {
  Random random(9);
  Routed c;
  c.gate = c.up = c.down = GetParam();
  const int64_t block = info(GetParam()).block_elements;
  c.hidden = block == 1 ? 75 : block, c.ffn = block == 1 ? 43 : block;
  if (block == 32) c.hidden = 96;
  test_routed(random, c, "one format");
}

// Few rows of an expert: gate and up of some formats are made side by side.
TEST_P(Formats, RoutedFew) {
  Random random(22);
  Routed c;
  c.gate = c.up = c.down = GetParam();
  c.rows = 5, c.experts = 7, c.bias = c.add = true;
  const int64_t block = info(GetParam()).block_elements;
  c.hidden = block == 1 ? 139 : 2 * block, c.ffn = block == 1 ? 43 : block;
  test_routed(random, c, "few rows");
}

// Sums over ranks that a norm and a product take over, against the same three one after the other: to the last bit.
TEST(RoutedGemm, LeavesItsSums) {
  Random random(23);
  const int experts = 5, top_k = 3;
  for (const auto& [format, rows, hidden] :
       {std::tuple<Fmt, int64_t, int64_t>{Fmt::kQ4K, 5, 512}, {Fmt::kBF16, 16, 200}, {Fmt::kQ8_0, 32, 2080}}) {
    const int64_t ffn = 256, n = 70;
    std::vector<std::unique_ptr<Matrix>> matrices;
    std::vector<ExpertEntry> entries;
    for (int e = 0; e < experts; ++e) {
      for (const bool is_down : {false, false, true})
        matrices.push_back(
            std::make_unique<Matrix>(random, format, is_down ? hidden : ffn, is_down ? ffn : hidden, true));
      const size_t at = matrices.size() - 3;
      entries.push_back({matrices[at]->weights(), matrices[at + 1]->weights(), matrices[at + 2]->weights()});
    }
    std::vector<int32_t> ids = distinct(random, rows, experts, top_k);
    ids[1] = -1;
    const Matrix product(random, format, n, hidden, true);
    const OnDevice<ExpertEntry> table(entries);
    const OnDevice<int32_t> chosen(ids);
    const OnDevice<float> x(normal(random, rows * hidden)), weights(normal(random, rows * top_k)),
        norm_weight(normal(random, hidden));
    const std::vector<float> before = normal(random, rows * hidden);
    std::vector<float> outputs[2];
    for (const bool apart : {true, false}) {
      const std::vector<float> nothing(size_t(rows * hidden), kNan);
      const OnDevice<float> sum(before), normed(nothing), out(std::vector<float>(size_t(rows * n), kNan));
      RoutedParams p;
      p.rows = rows, p.hidden = hidden, p.ffn = ffn, p.experts = experts, p.top_k = top_k;
      p.gate_format = p.up_format = p.down_format = format;
      p.table = table.data(), p.ids = chosen.data(), p.weights = weights.data(), p.x = x.data();
      p.add_to = sum.data(), p.add_scale = 0.5f;
      const NormParams norm{false, rows, hidden, 1e-5f, norm_weight.data(), nullptr, sum.data(), normed.data()};
      GemmParams g;
      g.format = format, g.w = product.weights(), g.rows = rows, g.n = n, g.cols = hidden;
      g.x = normed.data(), g.x_stride = hidden, g.norm = &norm, g.out = out.data(), g.out_stride = n;
      const uint64_t bytes = std::max(routed_gemm_scratch(p), gemm_scratch(g));
      const OnDevice<uint8_t> scratch(std::vector<uint8_t>(bytes, 0xff));
      p.scratch = g.scratch = scratch.data();
      RankSums left;
      ASSERT_EQ(routed_gemm(p, nullptr, &left), cudaSuccess);
      ASSERT_NE(left.down, nullptr);
      if (apart) {
        ASSERT_EQ(rank_sums(left, nullptr), cudaSuccess);
      } else {
        g.sums = &left;
        ASSERT_TRUE(gemm_takes_sums(g));
      }
      ASSERT_EQ(gemm(g, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      scratch.read();
      for (const OnDevice<float>* part : {&sum, &normed, &out}) {
        const std::vector<float> numbers = part->read();
        outputs[apart].insert(outputs[apart].end(), numbers.begin(), numbers.end());
      }
      // Other rows than those of the sums, or no room for what is narrowed: not taken, and refused.
      left.room = gemm_scratch(g) - 1, g.sums = &left;
      EXPECT_FALSE(gemm_takes_sums(g));
      EXPECT_EQ(gemm(g, nullptr), cudaErrorInvalidValue);
      left.room = bytes, left.p.add_to = nullptr;
      EXPECT_FALSE(gemm_takes_sums(g));
    }
    for (const float v : outputs[1]) ASSERT_TRUE(std::isfinite(v));
    EXPECT_EQ(outputs[0], outputs[1]) << rows << " rows";
  }
}

TEST(RoutedGemm, FormatsMayDiffer) {
  Random random(10);
  Routed c;
  c.hidden = c.ffn = 256, c.experts = 3, c.rows = 7;
  c.gate = Fmt::kQ4K, c.up = Fmt::kQ5K, c.down = Fmt::kQ6K;
  test_routed(random, c, "k-quants");
  c.gate = Fmt::kBF16, c.up = Fmt::kQ8_0, c.down = Fmt::kF16;
  test_routed(random, c, "brain, bytes, halves");
  c.gate = Fmt::kF16, c.up = Fmt::kF16, c.down = Fmt::kBF16;
  test_routed(random, c, "halves, then brain");
}

TEST(RoutedGemm, ActivationsBiasesAndSums) {
  Random random(11);
  for (const Act act : {Act::kSilu, Act::kGelu, Act::kGeluTanh, Act::kClampedSwiglu}) {
    Routed c;
    c.act = act, c.bias = true, c.add = act != Act::kGelu, c.size = 3.f;
    test_routed(random, c, "activation " + std::to_string(int(act)));
  }
}

TEST(RoutedGemm, LargeNumbers) {
  Random random(12);
  Routed c;
  c.size = 1e6f;  // what is between the products is near 1e12
  test_routed(random, c, "1e6");
  c.gate = c.up = c.down = Fmt::kBF16;
  test_routed(random, c, "1e6, BF16");
}

TEST(RoutedGemm, OneExpertTakesAll) {
  Random random(13);
  Routed c;
  c.rows = 150, c.top_k = 1, c.experts = 4, c.hidden = c.ffn = 32;
  c.ids.assign(150, 2);
  test_routed(random, c, "tiles of 64");
  c.rows = 210, c.experts = 2;
  c.ids.assign(210, 1);
  test_routed(random, c, "tiles of 128");
}

TEST(RoutedGemm, OneRowTakesAllExperts) {
  Random random(14);
  Routed c;
  c.rows = 1, c.top_k = c.experts = 9, c.hidden = c.ffn = 32;
  test_routed(random, c, "one row");
}

TEST(RoutedGemm, ManyRowsOfEachExpert) {
  Random random(15);
  Routed c;
  c.rows = 200, c.experts = 3, c.top_k = 2, c.hidden = 64, c.ffn = 32;
  test_routed(random, c, "133 rows an expert");
}

TEST(RoutedGemm, ExpertsThatAreNone) {
  Random random(16);
  Routed c;
  c.rows = 4, c.experts = 3, c.top_k = 3;
  c.ids = {0, 3, 1, -1, INT_MAX, INT_MIN, 2, 2, -7, 1, 1, 1};  // and experts chosen more than once
  for (const bool add : {false, true}) {
    c.add = add;
    test_routed(random, c, "ids out of range");
  }
}

}  // namespace
}  // namespace ef::cuda::testing
