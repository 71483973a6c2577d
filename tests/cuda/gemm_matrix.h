// What the tests of the products on tensor cores share: matrices of every format with the doubles behind them.
// Tolerances follow from the rounding of both factors to 16 bits: kUnit relative, and for single results the sum of all
// roundings at their worst.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "expertflow/backend/cuda/device/fast.h"
#include "expertflow/quant/formats.h"
#include "expertflow/quant/scalars.h"
#include "tests/cuda/device_memory.h"

namespace ef::cuda::testing {

inline constexpr double kHalf = 0x1p-11, kBrain = 0x1p-9;  // relative rounding
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Random = std::mt19937;

inline std::vector<float> normal(Random& random, int64_t count, float deviation = 1.f) {
  std::normal_distribution<float> d(0.f, deviation);
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = d(random);
  return v;
}

inline const FormatInfo& info(Fmt f) { return format_info(Format(f)); }

inline void put_half(uint8_t* at, float v) {
  const uint16_t h = f32_to_f16(v);
  std::memcpy(at, &h, 2);
}

// Blocks of random bits, so that every code occurs, with float16 fields that keep weights near 0.05.
inline void make_block(Random& random, Fmt f, uint8_t* b) {
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

inline std::vector<double> doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

inline double relative_error(const std::vector<double>& out, const std::vector<double>& ref) {
  double wrong = 0, all = 0;
  for (size_t i = 0; i < ref.size(); ++i) wrong += (out[i] - ref[i]) * (out[i] - ref[i]), all += ref[i] * ref[i];
  return std::sqrt(wrong / all);
}

inline std::vector<Fmt> all_of_them() {
  std::vector<Fmt> all;
  for (int f = 0; f < int(Fmt::kCount); ++f) all.push_back(Fmt(f));
  return all;
}
inline std::string name_of(const ::testing::TestParamInfo<Fmt>& p) { return std::string(info(p.param).name); }

}  // namespace ef::cuda::testing
