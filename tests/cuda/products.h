// What the tests of the products share: matrices in storage format with their numbers, activations as the kernels round
// them, and tolerances.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "expertflow/backend/cuda/device/fast.h"
#include "expertflow/quant/formats.h"
#include "tests/cuda/device_memory.h"

namespace ef::cuda::testing {

inline std::vector<float> normal(size_t n, uint32_t seed, float deviation = 1.f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> distribution(0.f, deviation);
  std::vector<float> all(n);
  for (float& v : all) v = distribution(engine);
  return all;
}

// A matrix on the device and its numbers on the host.
struct Stored {
  Stored(Format format, int64_t rows, int64_t cols, uint32_t seed, bool with_bias = false, float deviation = 0.5f)
      : format(format), rows(rows), cols(cols), values(size_t(rows * cols)) {
    const std::vector<float> numbers = normal(values.size(), seed, deviation);
    const uint64_t row_size = row_bytes(format, cols);
    std::vector<std::byte> bytes(size_t(rows) * row_size);
    for (int64_t r = 0; r < rows; ++r)
      format_info(format).quantize(numbers.data() + r * cols, bytes.data() + uint64_t(r) * row_size, cols);
    MatrixView view{format, rows, cols, bytes.data()};
    if (format == Format::kF8E4M3) {
      scales = normal(size_t((rows + 127) / 128 * ((cols + 127) / 128)), seed + 1);
      view.scales = scales.data();
      device_scales = std::make_unique<OnDevice<float>>(scales);
    }
    for (int64_t r = 0; r < rows; ++r) dequantize_row(view, r, values.data() + r * cols);
    std::vector<uint8_t> raw(bytes.size());
    std::memcpy(raw.data(), bytes.data(), raw.size());
    data = std::make_unique<OnDevice<uint8_t>>(raw);
    if (with_bias) {
      bias = normal(size_t(rows), seed + 2);
      device_bias = std::make_unique<OnDevice<float>>(bias);
    }
  }
  Weights weights() const {
    return {data->data(), device_scales ? device_scales->data() : nullptr, device_bias ? device_bias->data() : nullptr};
  }
  Fmt fmt() const { return Fmt(format); }
  double bias_of(int64_t row) const { return bias.empty() ? 0.0 : double(bias[size_t(row)]); }

  Format format;
  int64_t rows, cols;
  std::vector<float> values, scales, bias;
  std::unique_ptr<OnDevice<uint8_t>> data;
  std::unique_ptr<OnDevice<float>> device_scales, device_bias;
};

inline bool rounds(Meet meet, Format format) { return meet == Meet::kQ8 && format > Format::kF8E4M3; }

// A row of activations as a product takes it, and how far each element may be from it: half a step where it has been
// rounded from numbers that are not known to the last bit.
struct Taken {
  std::vector<double> value, slack;
};
inline Taken take(const std::vector<double>& row, bool rounded, bool exactly_known) {
  Taken t{row, std::vector<double>(row.size(), 0.0)};
  if (!rounded) return t;
  for (size_t g = 0; g < row.size(); g += 32) {
    float top = 0;
    for (size_t i = g; i < g + 32; ++i) top = std::max(top, std::abs(float(row[i])));
    const float scale = top >= 1e-30f ? top / 127.f : 0.f, factor = top >= 1e-30f ? 127.f / top : 0.f;
    for (size_t i = g; i < g + 32; ++i) {
      t.value[i] = exactly_known ? double(scale) * double(std::nearbyintf(float(row[i]) * factor)) : row[i];
      t.slack[i] = exactly_known ? 0.0 : 0.5001 * double(scale);
    }
  }
  return t;
}

struct Bounded {
  double value = 0, tolerance = 0;
};
// Sums of float32 products: about the square root of their number in units of 2^-24, with room; relative to what the
// terms amount to.
inline Bounded product(const Stored& w, int64_t row, const Taken& x) {
  Bounded p;
  double terms = 0;
  for (int64_t i = 0; i < w.cols; ++i) {
    const double weight = double(w.values[size_t(row * w.cols + i)]);
    p.value += weight * x.value[size_t(i)];
    terms += std::abs(weight * x.value[size_t(i)]);
    p.tolerance += std::abs(weight) * x.slack[size_t(i)];
  }
  p.value += w.bias_of(row);
  p.tolerance += 4e-6 * (terms + std::abs(w.bias_of(row)));
  return p;
}

inline void expect_near(float found, const Bounded& expected, const std::string& where) {
  EXPECT_TRUE(std::abs(double(found) - expected.value) <= expected.tolerance)
      << where << ": " << found << ", expected " << expected.value << " within " << expected.tolerance;
}

inline std::vector<double> doubles(const float* p, int64_t n) { return {p, p + n}; }

inline std::vector<Format> all_products() {
  std::vector<Format> all;
  for (const FormatInfo& f : all_formats())
    if (has_arithmetic(f.format)) all.push_back(f.format);
  return all;
}

inline std::vector<float> poisoned(int64_t n) {
  return std::vector<float>(size_t(n), std::numeric_limits<float>::quiet_NaN());
}

}  // namespace ef::cuda::testing
