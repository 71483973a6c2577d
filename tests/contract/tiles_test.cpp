// Weights in tiles and activations in 8 bits. The oracle: the activations are quantised here by the stated rule, the
// weights read by the format table's reference, the products summed in doubles.
#include "expertflow/quant/tiles.h"
#include "tests/contract/op_test.h"

namespace ef::testing {
namespace {

using Tiles = OpTest;

std::vector<Format> tile_formats() {
  std::vector<Format> formats;
  for (const FormatInfo& info : all_formats())
    if (has_tiles(info.format)) formats.push_back(info.format);
  return formats;
}

// The same matrix with its bytes in tiles.
TestMatrix in_tiles(Backend& backend, const TestMatrix& rows) {
  TestMatrix m;
  m.view = rows.view;
  m.view.layout = MatrixLayout::kTiles16;
  MatrixView host = rows.view;
  host.data = rows.blocks.data();
  m.blocks.resize(rows.blocks.size());
  tile_matrix(host, m.blocks.data());
  m.data = std::make_unique<DeviceArray<std::byte>>(backend, m.blocks);
  m.view.data = m.data->data();
  return m;
}

// x as 8-bit codes times the largest magnitude / 127, over groups of 32.
std::vector<double> quantised(const std::vector<float>& x) {
  std::vector<double> out;
  for (size_t g = 0; g < x.size(); g += 32) {
    float top = 0;
    for (size_t i = g; i < g + 32; ++i) top = std::max(top, std::fabs(x[i]));
    const float factor = top > 0 ? 127.f / top : 0.f, scale = top / 127.f;
    for (size_t i = g; i < g + 32; ++i) out.push_back(double(scale) * double(std::nearbyint(x[i] * factor)));
  }
  return out;
}

std::vector<float> run(Backend& backend, const MatrixView& w, const std::vector<float>& bias,
                       const std::vector<float>& x) {
  const int64_t rows = int64_t(x.size()) / w.cols;
  DeviceArray<float> device_x(backend, x), device_bias(backend, bias);
  DeviceArray<float> out(backend, std::vector<float>(size_t(rows * w.rows), NAN));
  auto stream = backend.make_stream();
  backend.linear(*stream,
                 LinearArgs{w, bias.empty() ? nullptr : device_bias.data(), rows, device_x.data(), out.data()});
  stream->synchronize();
  return out.read();
}

TEST(TilesLayout, IsAPermutationThatComesBack) {
  Random random(1);
  ThreadPool pool(1);
  const auto backend = make_cpu_backend(pool, Isa::kReference);
  for (Format format : tile_formats()) {
    int bytes = 0;
    for (const TileField& f : tile_fields(format)) bytes += f.width * f.count;
    EXPECT_EQ(bytes, format_info(format).block_bytes);
    for (int64_t rows : {1, 15, 16, 37, 64}) {
      const int64_t cols = fitting_cols(format, 500);
      const TestMatrix w = make_matrix(*backend, random, format, rows, cols);
      const TestMatrix t = in_tiles(*backend, w);
      std::vector<std::byte> row(row_bytes(format, cols));
      for (int64_t r = 0; r < rows; ++r) {
        untile_row(t.view, r, row.data());
        ASSERT_EQ(std::memcmp(row.data(), &w.blocks[size_t(r) * row.size()], row.size()), 0)
            << format_info(format).name << ", row " << r << " of " << rows;
        ASSERT_EQ(t.row(r), w.row(r));
      }
    }
  }
}

// By hand: the third word of the codes of Q8_0's block 1 for lane 5, and its scale.
TEST(TilesLayout, PutsFieldsWhereTheHeaderSays) {
  constexpr int64_t kCols = 64;
  std::vector<std::byte> rows(16 * 68), tiles(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = std::byte(i * 7 + i / 256);
  tile_matrix(MatrixView{Format::kQ8_0, 16, kCols, rows.data()}, tiles.data());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(tiles[(8 + 3) * 64 + 5 * 4 + i], rows[5 * 68 + 34 + 2 + 3 * 4 + i]);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(tiles[16 * 64 + 32 + 5 * 2 + i], rows[5 * 68 + 34 + i]);
}

TEST_P(Tiles, EveryFormatAgainstDoubles) {
  Random random(2);
  for (Format format : tile_formats()) {
    if (backend().weight_layout(Op::kLinear, format) != MatrixLayout::kTiles16) continue;
    for (int64_t rows : {1, 2, 3, 5, 12, 31}) {
      const int64_t n = 53, cols = fitting_cols(format, 32 * (rows % 3 + 1));
      const TestMatrix w = matrix(random, format, n, cols), t = in_tiles(backend(), w);
      const auto x = random.floats(rows * cols), bias = random.floats(n);
      const auto got = run(backend(), t.view, bias, x);
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<float> plain(x.begin() + r * cols, x.begin() + (r + 1) * cols);
        const std::vector<double> eight_bits = quantised(plain);
        for (int64_t i = 0; i < n; ++i) {
          // Rows that fill no tile meet the activations as they are.
          const bool tiled = i < n / kTileRows * kTileRows;
          const auto weights = w.row(i);
          double value = bias[size_t(i)], magnitude = std::fabs(value);
          for (int64_t k = 0; k < cols; ++k) {
            const double product = (tiled ? eight_bits[size_t(k)] : double(plain[size_t(k)])) * weights[size_t(k)];
            value += product, magnitude += std::fabs(product);
          }
          // Codes that lie above a minimum are summed before it is taken away, so the terms are larger.
          ASSERT_NEAR(got[size_t(r * n + i)], value, 64 * kUnit * magnitude + 1e-30)
              << format_info(format).name << ", row " << r << ", output " << i;
        }
      }
    }
  }
}

TEST_P(Tiles, ARowIsItsOwnAffair) {
  Random random(3);
  for (Format format : tile_formats()) {
    if (backend().weight_layout(Op::kLinear, format) != MatrixLayout::kTiles16) continue;
    const int64_t cols = fitting_cols(format, 512), n = 70;
    const TestMatrix t = in_tiles(backend(), matrix(random, format, n, cols));
    const auto x = random.floats(29 * cols), bias = random.floats(n);
    const auto all = run(backend(), t.view, bias, x);
    for (int64_t r : {0, 11, 12, 24, 28}) {
      const std::vector<float> one(x.begin() + r * cols, x.begin() + (r + 1) * cols);
      const std::vector<float> expected(all.begin() + r * n, all.begin() + (r + 1) * n);
      ASSERT_TRUE(same_bits(run(backend(), t.view, bias, one), expected)) << format_info(format).name << ", row " << r;
    }
  }
}

TEST_P(Tiles, SameBitsOnEveryInstructionSet) {
  Random random(4);
  ThreadPool pool(1);
  const auto other = make_cpu_backend(pool, supported_isas().back());
  for (Format format : tile_formats()) {
    if (backend().weight_layout(Op::kLinear, format) != MatrixLayout::kTiles16) continue;
    const int64_t cols = fitting_cols(format, 288);
    const TestMatrix w = matrix(random, format, 32, cols);
    auto x = random.floats(7 * cols);
    x[3] = 1e-35f, x[40] = 3e38f;
    ASSERT_TRUE(
        same_bits(run(backend(), in_tiles(backend(), w).view, {}, x), run(*other, in_tiles(*other, w).view, {}, x)))
        << format_info(format).name;
  }
}

// Extreme codes: every weight and activation at the end of its range, so that a sum that saturates shows.
TEST_P(Tiles, ExtremeCodesDoNotSaturate) {
  Random random(5);
  for (Format format : tile_formats()) {
    if (backend().weight_layout(Op::kLinear, format) != MatrixLayout::kTiles16) continue;
    const int64_t cols = fitting_cols(format, 256);
    for (float sign : {1.f, -1.f}) {
      TestMatrix w = matrix(random, format, 16, cols);
      std::vector<float> numbers(size_t(16 * cols), sign * 3.f);
      numbers[0] = -sign * 3.f;
      format_info(format).quantize(numbers.data(), w.blocks.data(), int64_t(numbers.size()));
      const std::vector<float> x(size_t(cols), 2.f);
      const auto got = run(backend(), in_tiles(backend(), w).view, {}, x);
      for (int64_t i = 0; i < 16; ++i) {
        double value = 0;
        for (float v : w.row(i)) value += 2.0 * double(v);
        ASSERT_NEAR(got[size_t(i)], value, 64 * kUnit * 6 * double(cols)) << format_info(format).name;
      }
    }
  }
}

TEST_P(Tiles, ANumberThatIsNotFiniteShows) {
  Random random(6);
  for (Format format : tile_formats()) {
    if (backend().weight_layout(Op::kLinear, format) != MatrixLayout::kTiles16) continue;
    const int64_t cols = fitting_cols(format, 64);
    const TestMatrix t = in_tiles(backend(), matrix(random, format, 16, cols));
    for (float odd : {NAN, INFINITY, -INFINITY}) {
      auto x = random.floats(2 * cols);
      x[size_t(cols) + 33] = odd;
      const auto got = run(backend(), t.view, {}, x);
      for (size_t i = 0; i < 16; ++i) {
        EXPECT_TRUE(std::isfinite(got[i]));
        EXPECT_FALSE(std::isfinite(got[16 + i])) << format_info(format).name;
      }
    }
  }
}

EF_FOR_EACH_BACKEND(Tiles);

}  // namespace
}  // namespace ef::testing
