// linear, head_linear and embed: every format against doubles, and the promise that a row's result is its own affair.
#include <algorithm>

#include "tests/contract/op_test.h"

namespace ef::testing {
namespace {

using Linear = OpTest;

// Element (x, row of w) in double, and what float32 may miss it by: a few units of the sum of magnitudes.
struct Expected {
  double value = 0, tolerance = 0;
};
Expected dot(const float* x, const std::vector<float>& w, double unit = kUnit) {
  Expected e;
  double magnitude = 0;
  for (size_t k = 0; k < w.size(); ++k) {
    e.value += double(x[k]) * double(w[k]);
    magnitude += std::fabs(double(x[k]) * double(w[k]));
  }
  e.tolerance = std::max(8 * kUnit, unit) * magnitude + 1e-30;
  return e;
}

struct Shape {
  int64_t rows, n, cols;
};

void check_linear(Backend& backend, Stream& stream, const TestMatrix& w, const std::vector<float>& x, int64_t rows,
                  const std::vector<float>& bias, int samples, Random& random) {
  DeviceArray<float> device_x(backend, x), device_bias(backend, bias);
  DeviceArray<float> out(backend, std::vector<float>(size_t(rows * w.view.rows), NAN));
  LinearArgs args{w.view, bias.empty() ? nullptr : device_bias.data(), rows, device_x.data(), out.data()};
  backend.linear(stream, args);
  stream.synchronize();
  const auto got = out.read();
  for (float v : got) ASSERT_FALSE(std::isnan(v)) << "an element was not written";
  const int64_t all = rows * w.view.rows;
  for (int64_t i = 0; i < std::min<int64_t>(all, samples); ++i) {
    // All elements of small products, random ones of large products.
    const int64_t at = all <= samples ? i : (int64_t(random.below(int(all))));
    const int64_t r = at / w.view.rows, n = at % w.view.rows;
    const Expected e = dot(&x[size_t(r * w.view.cols)], w.row(n), product_unit(backend, w.view.format));
    const double expected = e.value + (bias.empty() ? 0 : double(bias[size_t(n)]));
    ASSERT_NEAR(got[size_t(at)], expected, e.tolerance + kUnit * 2 * std::fabs(expected))
        << format_info(w.view.format).name << ", row " << r << ", output " << n;
  }
}

TEST_P(Linear, EveryFormatAgainstDoubles) {
  Random random(1);
  for (Format format : arithmetic_formats()) {
    for (const Shape shape : {Shape{1, 1, 1}, {1, 37, 50}, {3, 5, 31}, {7, 18, 256}, {13, 67, 300}}) {
      const int64_t cols = fitting_cols(format, shape.cols);
      const TestMatrix w = matrix(random, format, shape.n, cols);
      const auto x = random.floats(shape.rows * cols);
      check_linear(backend(), stream(), w, x, shape.rows, random.floats(shape.n), 2000, random);
      check_linear(backend(), stream(), w, x, shape.rows, {}, 2000, random);
    }
  }
}

// Widths around the vector lengths, where a tail is handled apart.
TEST_P(Linear, OddWidths) {
  Random random(2);
  for (Format format : {Format::kF32, Format::kF16, Format::kBF16, Format::kF8E4M3}) {
    for (int64_t cols = 1; cols <= 70; ++cols) {
      const TestMatrix w = matrix(random, format, 6, cols);
      check_linear(backend(), stream(), w, random.floats(4 * cols), 4, {}, 100, random);
    }
  }
}

// Hidden sizes and expert widths of OLMoE, Qwen3-30B, gpt-oss, Mixtral and DeepSeek-V3.
TEST_P(Linear, ShapesOfRealModels) {
  Random random(3);
  const Shape shapes[] = {{3, 1024, 2048}, {2, 768, 2048}, {2, 2880, 2880}, {1, 2048, 7168}, {1, 7168, 2048}};
  int turn = 0;
  const auto formats = arithmetic_formats();
  for (const Shape& shape : shapes) {
    for (int i = 0; i < 4; ++i) {
      const Format format = formats[size_t(turn++) % formats.size()];
      if (shape.cols % format_info(format).block_elements != 0) continue;
      const TestMatrix w = matrix(random, format, shape.n, shape.cols, 0.02f);
      const auto x = random.floats(shape.rows * shape.cols);
      check_linear(backend(), stream(), w, x, shape.rows, {}, 24, random);
    }
  }
}

std::vector<float> run_linear(Backend& backend, const TestMatrix& w, const std::vector<float>& bias,
                              const std::vector<float>& x) {
  const int64_t rows = int64_t(x.size()) / w.view.cols;
  DeviceArray<float> device_x(backend, x), device_bias(backend, bias);
  DeviceArray<float> out(backend, std::vector<float>(size_t(rows * w.view.rows), NAN));
  auto stream = backend.make_stream();
  backend.linear(*stream, LinearArgs{w.view, device_bias.data(), rows, device_x.data(), out.data()});
  stream->synchronize();
  return out.read();
}

std::vector<float> slice(const std::vector<float>& v, int64_t row, int64_t rows, int64_t width) {
  return {v.begin() + row * width, v.begin() + (row + rows) * width};
}

// Blocks of any bytes, except where they stand for something that is not finite.
std::vector<std::byte> random_blocks(Random& random, const FormatInfo& info, int64_t count) {
  std::vector<std::byte> blocks(size_t(count * info.block_bytes));
  std::vector<float> values(static_cast<size_t>(info.block_elements));
  for (int64_t b = 0; b < count; ++b) {
    std::byte* block = &blocks[size_t(b * info.block_bytes)];
    do {
      for (int i = 0; i < info.block_bytes; ++i) block[i] = std::byte(random.below(256));
      info.dequantize(block, values.data(), info.block_elements);
    } while (!std::all_of(values.begin(), values.end(), [](float v) { return std::fabs(v) < 1e30f; }));
  }
  return blocks;
}

// A unit vector picks one weight, so this sees the numbers that the fast paths make of a block: the reference's,
// exactly.
TEST_P(Linear, UnitVectorsPickTheWeightsExactly) {
  Random random(13);
  for (Format format : arithmetic_formats()) {
    const int64_t cols = format_info(format).block_elements == 1 ? 67 : 512, n = 23;
    TestMatrix w = matrix(random, format, n, cols);
    w.blocks = random_blocks(random, format_info(format), n * cols / format_info(format).block_elements);
    w.data = std::make_unique<DeviceArray<std::byte>>(backend(), w.blocks);
    w.view.data = w.data->data();
    std::vector<float> unit(size_t(cols * cols), 0.f);
    for (int64_t k = 0; k < cols; ++k) unit[size_t(k * cols + k)] = 1.f;
    const auto got = run_linear(backend(), w, std::vector<float>(size_t(n), 0.f), unit);
    for (int64_t i = 0; i < n; ++i) {
      const auto row = w.row(i);
      for (int64_t k = 0; k < cols; ++k) {
        // BF16 arithmetic takes subnormals for zero.
        if (product_unit(backend(), format) != kUnit && std::fabs(row[size_t(k)]) < 0x1p-126f) continue;
        ASSERT_EQ(got[size_t(k * n + i)], row[size_t(k)]) << format_info(format).name << ", column " << k;
      }
    }
  }
}

TEST_P(Linear, F8WithoutScales) {
  Random random(4);
  TestMatrix w = matrix(random, Format::kF8E4M3, 9, 40);
  w.view.scales = nullptr;
  w.host_scales.clear();
  check_linear(backend(), stream(), w, random.floats(2 * 40), 2, {}, 100, random);
}

TEST_P(Linear, ZeroRowsWriteNothing) {
  Random random(5);
  const TestMatrix w = matrix(random, Format::kF32, 4, 8);
  auto x = array(random.floats(8));
  auto out = array(std::vector<float>(4, 3.f));
  backend().linear(stream(), LinearArgs{w.view, nullptr, 0, x.data(), out.data()});
  backend().head_linear(stream(), HeadLinearArgs{w.view, 0, 2, x.data(), 8, 4, out.data(), 4, 2});
  backend().embed(stream(), w.view, nullptr, 0, 1.f, out.data());
  stream().synchronize();
  EXPECT_EQ(out.read(), std::vector<float>(4, 3.f));
}

// Infinity and NaN stay visible, and stay in their row.
TEST_P(Linear, NonFiniteInputStaysInItsRow) {
  Random random(6);
  const TestMatrix w = matrix(random, Format::kBF16, 5, 40);
  auto values = random.floats(3 * 40);
  values[40 + 39] = NAN;
  auto x = array(values);
  auto out = output(3 * 5);
  backend().linear(stream(), LinearArgs{w.view, nullptr, 3, x.data(), out.data()});
  stream().synchronize();
  const auto got = out.read();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i / 5 == 1) << i;
}

TEST_P(Linear, ARowIsBitIdenticalInAnyCompany) {
  Random random(7);
  for (Format format : arithmetic_formats()) {
    const int64_t n = 70, cols = fitting_cols(format, 517), most = 64;
    const TestMatrix w = matrix(random, format, n, cols);
    const auto bias = random.floats(n);
    const auto x = random.floats(most * cols);
    const auto all = run_linear(backend(), w, bias, x);
    for (int64_t rows : {1, 2, 3, 5, 17}) {
      for (int64_t first = 0; first + rows <= most; first += rows) {
        if (rows < 5 && first > 12) break;
        ASSERT_TRUE(same_bits(run_linear(backend(), w, bias, slice(x, first, rows, cols)), slice(all, first, rows, n)))
            << format_info(format).name << ", rows " << first << " to " << first + rows << " alone";
      }
    }
    std::vector<int64_t> order;
    for (int64_t r = 0; r < most; ++r) order.push_back(r);
    random.shuffle(order);
    std::vector<float> shuffled, expected;
    for (int64_t r : order) {
      const auto in = slice(x, r, 1, cols), out = slice(all, r, 1, n);
      shuffled.insert(shuffled.end(), in.begin(), in.end());
      expected.insert(expected.end(), out.begin(), out.end());
    }
    EXPECT_TRUE(same_bits(run_linear(backend(), w, bias, shuffled), expected)) << format_info(format).name;
  }
}

TEST_P(Linear, BitIdenticalAtAnyNumberOfThreads) {
  Random random(8);
  for (Format format : {Format::kF32, Format::kBF16, Format::kQ4K, Format::kF8E4M3}) {
    const int64_t n = 301, cols = 512;
    const TestMatrix w = matrix(random, format, n, cols);
    const auto bias = random.floats(n);
    const auto x = random.floats(9 * cols);
    const auto expected = run_linear(backend(), w, bias, x);
    for (int threads : {1, 3, 7}) {
      ThreadPool pool(threads);
      auto other = GetParam().make(pool);
      EXPECT_TRUE(same_bits(run_linear(*other, w, bias, x), expected)) << threads << " threads";
    }
  }
}

// A weight row's outputs do not depend on the other weight rows either: a sharded matrix gives the same numbers.
TEST_P(Linear, BitIdenticalForAPartOfTheMatrix) {
  Random random(9);
  for (Format format : {Format::kF16, Format::kQ8_0}) {
    const int64_t cols = 96;
    const TestMatrix w = matrix(random, format, 23, cols);
    const auto x = random.floats(5 * cols);
    const auto all = run_linear(backend(), w, std::vector<float>(23, 0.f), x);
    for (int64_t first : {0, 1, 3, 22}) {
      TestMatrix part = matrix(random, format, 1, cols);
      part.view.data = w.view.data + uint64_t(first) * row_bytes(format, cols);
      part.view.rows = std::min<int64_t>(3, 23 - first);
      const auto got = run_linear(backend(), part, std::vector<float>(3, 0.f), x);
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t i = 0; i < part.view.rows; ++i)
          ASSERT_EQ(std::bit_cast<uint32_t>(got[size_t(r * part.view.rows + i)]),
                    std::bit_cast<uint32_t>(all[size_t(r * 23 + first + i)]));
    }
  }
}

TEST_P(Linear, HeadLinearAgainstDoubles) {
  Random random(10);
  for (Format format : arithmetic_formats()) {
    const int heads = 3;
    const int64_t n = 21, k = fitting_cols(format, 40), rows = 5;
    // Strides as in latent attention: the head's part lies inside a longer row.
    const int64_t x_head = k + 7, x_row = heads * x_head + 5, out_head = n + 4, out_row = heads * out_head + 2;
    const TestMatrix w = matrix(random, format, heads * n, k);
    const auto x = random.floats(rows * x_row);
    auto device_x = array(x);
    auto out = array(std::vector<float>(size_t(rows * out_row), -7.f));
    backend().head_linear(
        stream(), HeadLinearArgs{w.view, rows, heads, device_x.data(), x_row, x_head, out.data(), out_row, out_head});
    stream().synchronize();
    const auto got = out.read();
    std::vector<bool> written(got.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < n; ++i) {
          const Expected e =
              dot(&x[size_t(r * x_row + h * x_head)], w.row(h * n + i), product_unit(backend(), w.view.format));
          const size_t at = size_t(r * out_row + h * out_head + i);
          written[at] = true;
          ASSERT_NEAR(got[at], e.value, e.tolerance) << format_info(format).name;
        }
      }
    }
    for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(written[i] || got[i] == -7.f) << "wrote between the heads";
  }
}

TEST_P(Linear, HeadLinearIsLinearOfEachHead) {
  Random random(11);
  const int heads = 4;
  const int64_t n = 33, k = 96, rows = 6;
  for (Format format : {Format::kBF16, Format::kQ5_0}) {
    const TestMatrix w = matrix(random, format, heads * n, k);
    const auto x = random.floats(rows * heads * k);
    auto device_x = array(x);
    auto out = output(rows * heads * n);
    backend().head_linear(stream(),
                          HeadLinearArgs{w.view, rows, heads, device_x.data(), heads * k, k, out.data(), heads * n, n});
    stream().synchronize();
    const auto got = out.read();
    for (int64_t h = 0; h < heads; ++h) {
      TestMatrix part = matrix(random, format, 1, k);
      part.view.rows = n;
      part.view.data = w.view.data + uint64_t(h * n) * row_bytes(format, k);
      std::vector<float> in, expected;
      for (int64_t r = 0; r < rows; ++r) {
        in.insert(in.end(), x.begin() + (r * heads + h) * k, x.begin() + (r * heads + h + 1) * k);
        expected.insert(expected.end(), got.begin() + (r * heads + h) * n, got.begin() + (r * heads + h + 1) * n);
      }
      EXPECT_TRUE(same_bits(run_linear(backend(), part, std::vector<float>(size_t(n), 0.f), in), expected));
    }
  }
}

TEST_P(Linear, EmbedCopiesRowsTimesScale) {
  Random random(12);
  for (Format format : arithmetic_formats()) {
    const int64_t cols = fitting_cols(format, 30);
    const TestMatrix table = matrix(random, format, 200, cols);
    const std::vector<TokenId> ids = {0, 199, 128, 5, 5, 127, 199};
    const auto device_ids = array(ids);
    for (float scale : {1.f, 12.5f}) {
      auto out = output(int64_t(ids.size()) * cols);
      backend().embed(stream(), table.view, device_ids.data(), int64_t(ids.size()), scale, out.data());
      stream().synchronize();
      const auto got = out.read();
      for (size_t i = 0; i < ids.size(); ++i) {
        const auto row = table.row(ids[i]);
        for (int64_t k = 0; k < cols; ++k)
          ASSERT_EQ(got[i * size_t(cols) + size_t(k)], row[size_t(k)] * scale) << format_info(format).name;
      }
    }
  }
}

TEST_P(Linear, SupportsWhatHasArithmetic) {
  for (const FormatInfo& info : all_formats()) {
    for (Op op : {Op::kEmbed, Op::kLinear, Op::kHeadLinear, Op::kExperts})
      EXPECT_EQ(backend().supports(op, info.format), has_arithmetic(info.format)) << info.name;
  }
  EXPECT_TRUE(backend().supports(Op::kAttention, Format::kBF16));
  EXPECT_FALSE(backend().supports(Op::kAttention, Format::kQ8_0));
  EXPECT_TRUE(backend().supports(Op::kNorm, Format::kF32));
}

EF_FOR_EACH_BACKEND(Linear);

}  // namespace
}  // namespace ef::testing
