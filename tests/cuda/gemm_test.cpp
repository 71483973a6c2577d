// gemm() against doubles computed from dequantised weights.
#include <cmath>

#include "tests/cuda/gemm_matrix.h"

namespace ef::cuda::testing {
namespace {

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

}  // namespace
}  // namespace ef::cuda::testing
