// Arrays in the memory of a device, with guard zones, for tests that call launchers themselves.
#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace ef::cuda::testing {

template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : n_(values.size()) {
    std::vector<uint8_t> bytes(2 * kGuard + n_ * sizeof(T), kPattern);
    if (n_ > 0) std::memcpy(bytes.data() + kGuard, values.data(), n_ * sizeof(T));
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), bytes.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }

  T* data() const { return reinterpret_cast<T*>(data_ + kGuard); }

  // The values; fails the test if a guard zone was written.
  std::vector<T> read() const {
    std::vector<uint8_t> bytes(2 * kGuard + n_ * sizeof(T));
    EXPECT_EQ(cudaMemcpy(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < kGuard; ++i) {
      if (bytes[i] == kPattern && bytes[bytes.size() - 1 - i] == kPattern) continue;
      ADD_FAILURE() << "a kernel wrote outside of its output";
      break;
    }
    std::vector<T> values(n_);
    if (n_ > 0) std::memcpy(values.data(), bytes.data() + kGuard, n_ * sizeof(T));
    return values;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr uint8_t kPattern = 0xa5;
  size_t n_;
  uint8_t* data_ = nullptr;
};

}  // namespace ef::cuda::testing
