// Memory of the device, and random numbers for it: what the programs of this folder share.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace ef::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

/// Numbers of the device, of which those that nobody wrote are NaN.
template <class T>
class Device {
 public:
  explicit Device(int64_t count) : count_(std::max<int64_t>(count, 1)) {
    void* p = nullptr;
    check(cudaMalloc(&p, size_t(count_) * sizeof(T)), "cudaMalloc");
    data_ = static_cast<T*>(p);
    poison();
  }
  explicit Device(const std::vector<T>& from) : Device(int64_t(from.size())) { set(from); }
  Device(const Device&) = delete;
  ~Device() { cudaFree(data_); }
  T* get() const { return data_; }
  void poison() { check(cudaMemset(data_, 0xff, size_t(count_) * sizeof(T)), "memset"); }
  void set(const std::vector<T>& from) {
    check(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  std::vector<T> host() const {
    std::vector<T> out(static_cast<size_t>(count_));
    check(cudaMemcpy(out.data(), data_, out.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return out;
  }

 private:
  int64_t count_;
  T* data_ = nullptr;
};

inline std::vector<float> normal(int64_t n, uint32_t seed, float mean = 0, float deviation = 1) {
  std::mt19937 g(seed);
  std::normal_distribution<float> d(mean, deviation);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = d(g);
  return v;
}

}  // namespace ef::cuda
