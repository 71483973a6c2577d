// CUDA devices as backends. Implemented by backend/cuda, or by backend/no_cuda in builds without CUDA, where there are
// no devices and making a backend is a ConfigError that says so.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "expertflow/backend/backend.h"

namespace ef {

/// Whether this build has the CUDA backend; devices or not.
bool built_with_cuda();
/// Devices that this process can use; 0 without a driver.
int cuda_device_count();

struct CudaMemory {
  uint64_t free = 0, total = 0;
};
/// ConfigError if there is no such device or no CUDA in this build; DeviceError if the driver fails.
CudaMemory cuda_memory(int device);

struct CudaOptions {
  /// Every row's arithmetic is the same in any batch: float32, fixed order of sums, one kernel for all shapes. Else the
  /// compositions of backend.h (and linear, attention) take the fastest kernels for their shape: tensor cores on
  /// numbers rounded to 16 bits for many rows, other orders of sums.
  bool batch_invariant = true;
  /// Products of few rows with block formats of 8 bits and fewer: activations rounded to 8 bits with a scale for 32.
  bool round_activations = false;
};
/// Ops are queued and return at once. Scratch belongs to streams, so that ops of different streams may overlap.
/// ConfigError as above.
std::unique_ptr<Backend> make_cuda_backend(int device, const CudaOptions& options = {});
/// What a device does at best, by loops of nothing else: the median of several tries.
struct CudaPeaks {
  double read = 0;           ///< bytes of its memory a second
  uint64_t read_buffer = 0;  ///< bytes, read over and over; many times its caches
  double half = 0;  ///< operations a second of 16-bit matrix products with float32 sums, as kernels ask for them
};
/// most_bytes: of the device's memory. ConfigError, DeviceError: as cuda_memory(), or too little of it is free.
CudaPeaks cuda_peaks(int device, uint64_t most_bytes = 4ull << 30);

/// Device memory that a stream's ops take for themselves: staging, and attention's partial sums or the activations
/// between the halves of experts (more only where a single row needs more).
uint64_t cuda_scratch_bytes();

}  // namespace ef
