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

/// The largest step that ops are to be ready for.
struct StepShape {
  int64_t rows = 0, hidden = 0;
  int64_t widest = 0;  ///< input of any product
  int64_t ffn = 0;     ///< of the routed experts
  int experts = 0, top_k = 0;
  int heads = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
  bool latent = false;  ///< values are part of the keys
  KvType kv = KvType::kF16;
  int64_t context = 0;  ///< positions that attention may reach
};
/// Device memory that a stream's ops take as scratch in steps of up to so many rows. An estimate: ways to compute may
/// be chosen that this does not foresee.
uint64_t cuda_scratch_bytes(const StepShape& shape, const CudaOptions& options);
/// Device memory that a stream takes beside: what arguments travel through, counters.
uint64_t cuda_stream_bytes();
/// Of expert_table() for a layer of so many experts.
uint64_t cuda_table_bytes(int experts);

}  // namespace ef
