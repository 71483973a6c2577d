// What the op suites share: a backend to test, arrays in its memory with guard zones, random numbers and matrices, and
// comparison with an oracle's doubles. Outputs start out as NaN, so an element that an op forgets shows.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/contract/backends.h"

namespace ef::testing {

inline constexpr double kUnit = 0x1p-24;  // rounding unit of float32

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float normal(float deviation = 1.f) { return deviation * normal_(engine_); }
  int below(int n) { return int(std::uniform_int_distribution<int>(0, n - 1)(engine_)); }
  std::vector<float> floats(int64_t n, float deviation = 1.f) {
    std::vector<float> all(static_cast<size_t>(n));
    for (float& v : all) v = normal(deviation);
    return all;
  }
  template <class T>
  void shuffle(std::vector<T>& v) {
    std::shuffle(v.begin(), v.end(), engine_);
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// n elements in the backend's memory between two guard zones; the array begins at an odd multiple of 64 bytes.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Backend& backend, const std::vector<T>& values) : backend_(&backend), n_(values.size()) {
    std::vector<std::byte> bytes(2 * kGuard + n_ * sizeof(T), kPattern);
    if (n_ > 0) std::memcpy(bytes.data() + kGuard, values.data(), n_ * sizeof(T));
    stream_ = backend.make_stream();
    buffer_ = backend.allocate(bytes.size());
    backend.copy_to_device(buffer_.data(), bytes.data(), bytes.size(), *stream_);
    stream_->synchronize();
  }
  T* data() const { return reinterpret_cast<T*>(buffer_.data() + kGuard); }
  size_t size() const { return n_; }

  // The values; fails the test if a guard zone was written.
  std::vector<T> read() const {
    std::vector<std::byte> bytes(buffer_.size());
    backend_->copy_to_host(bytes.data(), buffer_.data(), bytes.size(), *stream_);
    stream_->synchronize();
    for (size_t i = 0; i < kGuard; ++i) {
      if (bytes[i] == kPattern && bytes[bytes.size() - 1 - i] == kPattern) continue;
      ADD_FAILURE() << "an op wrote outside of its output";
      break;
    }
    std::vector<T> values(n_);
    if (n_ > 0) std::memcpy(values.data(), bytes.data() + kGuard, n_ * sizeof(T));
    return values;
  }

 private:
  static constexpr size_t kGuard = 192;
  static constexpr std::byte kPattern{0xa5};
  Backend* backend_;
  size_t n_;
  std::unique_ptr<Stream> stream_;
  Buffer buffer_;
};

// A random matrix in a storage format, in the backend's memory, with the numbers that it stands for.
struct TestMatrix {
  MatrixView view;                 // backend's memory
  std::vector<std::byte> blocks;   // host copy
  std::vector<float> host_scales;  // kF8E4M3
  std::unique_ptr<DeviceArray<std::byte>> data;
  std::unique_ptr<DeviceArray<float>> scales;

  std::vector<float> row(int64_t r) const {
    MatrixView host = view;
    host.data = blocks.data();
    host.scales = host_scales.empty() ? nullptr : host_scales.data();
    std::vector<float> out(static_cast<size_t>(view.cols));
    dequantize_row(host, r, out.data());
    return out;
  }
};

// Blocks drawn from a few that the reference quantiser made, so that large matrices cost little.
inline TestMatrix make_matrix(Backend& backend, Random& random, Format format, int64_t rows, int64_t cols,
                              float deviation = 1.f) {
  TestMatrix m;
  m.view.format = format;
  m.view.rows = rows;
  m.view.cols = cols;
  const FormatInfo& info = format_info(format);
  // Scalars are drawn in runs, blocks one by one.
  const int64_t run = info.block_elements == 1 ? 61 : 1;
  constexpr int kDistinct = 96;
  const auto floats = random.floats(kDistinct * run * info.block_elements, deviation);
  std::vector<std::byte> pool(size_t(kDistinct * run * info.block_bytes));
  info.quantize(floats.data(), pool.data(), int64_t(floats.size()));
  const size_t run_bytes = size_t(run * info.block_bytes);
  m.blocks.resize(size_t(rows) * row_bytes(format, cols));
  for (size_t at = 0; at < m.blocks.size(); at += run_bytes)
    std::memcpy(&m.blocks[at], &pool[size_t(random.below(kDistinct)) * run_bytes],
                std::min(run_bytes, m.blocks.size() - at));
  m.data = std::make_unique<DeviceArray<std::byte>>(backend, m.blocks);
  m.view.data = m.data->data();
  if (format == Format::kF8E4M3) {
    for (int64_t i = 0; i < (rows + 127) / 128 * ((cols + 127) / 128); ++i)
      m.host_scales.push_back(0.25f + float(random.below(1000)) * 1e-3f);
    m.scales = std::make_unique<DeviceArray<float>>(backend, m.host_scales);
    m.view.scales = m.scales->data();
  }
  return m;
}

inline std::vector<Format> arithmetic_formats() {
  std::vector<Format> formats;
  for (const FormatInfo& info : all_formats())
    if (has_arithmetic(info.format)) formats.push_back(info.format);
  return formats;
}

// Rounding unit of a product's operands: instruction sets with BF16 arithmetic round what meets BF16 weights.
inline double product_unit(const Backend& backend, Format weights) {
  const bool rounds = backend.description().find("avx512-bf16") != std::string::npos && weights == Format::kBF16;
  return rounds ? 0x1p-8 : kUnit;
}

// A device emulated on the CPU: cases that would take minutes there are skipped, and say so.
inline bool is_emulated(const Backend& backend) {
  return backend.description().find("(emulated,") != std::string::npos;
}

// A width near n that the format's blocks divide; for formats without blocks n itself.
inline int64_t fitting_cols(Format format, int64_t n) {
  const int64_t block = format_info(format).block_elements;
  return (n + block - 1) / block * block;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

class OpTest : public ::testing::TestWithParam<BackendMaker> {
 protected:
  OpTest() : pool_(2), backend_(GetParam().make(pool_)), stream_(backend_->make_stream()) {}

  Backend& backend() { return *backend_; }
  Stream& stream() { return *stream_; }
  template <class T>
  DeviceArray<T> array(const std::vector<T>& values) {
    return DeviceArray<T>(*backend_, values);
  }
  // An output that the op has to fill.
  DeviceArray<float> output(int64_t n) {
    return DeviceArray<float>(*backend_, std::vector<float>(size_t(n), std::numeric_limits<float>::quiet_NaN()));
  }
  TestMatrix matrix(Random& random, Format format, int64_t rows, int64_t cols, float deviation = 1.f) {
    return make_matrix(*backend_, random, format, rows, cols, deviation);
  }

  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
};

inline std::string backend_name(const ::testing::TestParamInfo<BackendMaker>& info) { return info.param.name; }

}  // namespace ef::testing

#define EF_FOR_EACH_BACKEND(Suite)                                                                \
  INSTANTIATE_TEST_SUITE_P(Backends, Suite, ::testing::ValuesIn(::ef::testing::backend_makers()), \
                           ::ef::testing::backend_name)
