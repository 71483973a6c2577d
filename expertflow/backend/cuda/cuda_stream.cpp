#include "expertflow/backend/cuda/cuda_stream.h"

#include <algorithm>
#include <cstring>

#include "expertflow/base/errors.h"

namespace ef::cuda {
namespace {

// Staging grows to where waiting for it to empty is rare; streams that stage little stay small.
constexpr uint64_t kLeastStaging = 64 << 10, kMostStaging = 4 << 20;
constexpr uint64_t kAlign = 256;

template <class T>
void** address_of(T*& pointer) {
  return reinterpret_cast<void**>(&pointer);
}

}  // namespace

void check(cudaError_t error, std::string_view op) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // the next op is not to be blamed for this one, unless the context is lost
  fail<DeviceError>("cuda: {}: {} ({})", op, cudaGetErrorString(error), cudaGetErrorName(error));
}

CudaStream::CudaStream(int device) : device_(device) {
  check(cudaSetDevice(device_), "set device");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
}

CudaStream::~CudaStream() {
  // Nowhere to report to from here; whoever needed the results has synchronised.
  (void)cudaSetDevice(device_);
  (void)cudaStreamSynchronize(stream_);
  (void)cudaFree(scratch_);
  (void)cudaFree(staged_);
  (void)cudaFreeHost(pinned_);
  (void)cudaStreamDestroy(stream_);
}

void CudaStream::synchronize() {
  check(cudaStreamSynchronize(stream_), "wait for a stream");
  used_ = 0;
}

uint64_t CudaStream::room(uint64_t bytes) {
  const uint64_t need = (bytes + kAlign - 1) / kAlign * kAlign;
  if (used_ + need > capacity_) {
    synchronize();
    if (need > capacity_ || capacity_ < kMostStaging) {
      check(cudaFreeHost(pinned_), "free staging memory");
      pinned_ = nullptr;
      check(cudaFree(staged_), "free staging memory");
      staged_ = nullptr;
      const uint64_t capacity = std::max({kLeastStaging, 4 * capacity_, need});
      capacity_ = 0;
      check(cudaMallocHost(address_of(pinned_), capacity), "allocate page-locked memory");
      check(cudaMalloc(address_of(staged_), capacity), "allocate staging memory");
      capacity_ = capacity;
    }
  }
  const uint64_t at = used_;
  used_ += need;
  return at;
}

const std::byte* CudaStream::stage(const void* host, uint64_t bytes) {
  const uint64_t at = room(bytes);
  std::memcpy(pinned_ + at, host, bytes);
  check(cudaMemcpyAsync(staged_ + at, pinned_ + at, bytes, cudaMemcpyHostToDevice, stream_), "copy arguments");
  return staged_ + at;
}

void CudaStream::copy_to_device(void* device, const void* host, uint64_t bytes) {
  constexpr uint64_t kSmall = 256 << 10;
  if (bytes == 0) return;
  if (bytes <= kSmall) {
    const uint64_t at = room(bytes);
    std::memcpy(pinned_ + at, host, bytes);
    host = pinned_ + at;
  }
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "copy to the device");
}

float* CudaStream::scratch(uint64_t floats) {
  if (floats > scratch_floats_) {
    synchronize();
    check(cudaFree(scratch_), "free scratch memory");
    scratch_ = nullptr, scratch_floats_ = 0;
    const cudaError_t error = cudaMalloc(address_of(scratch_), floats * sizeof(float));
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      fail<DeviceError>("cuda: cannot allocate {} bytes of scratch memory: {}", floats * sizeof(float),
                        cudaGetErrorString(error));
    }
    scratch_floats_ = floats;
  }
  return scratch_;
}

}  // namespace ef::cuda
