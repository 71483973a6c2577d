// A CUDA stream with what its ops need beside arguments: pinned memory through which small arguments travel, scratch
// that only grows, counters for kernels whose blocks meet; and recordings of its ops as CUDA graphs. One thread at a
// time.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "expertflow/backend/backend.h"
#include "expertflow/backend/cuda/device/fast.h"

namespace ef::cuda {

/// Most device memory that a stream takes beside scratch: staging and counters.
constexpr uint64_t kMostStaging = 4 << 20, kCounters = 16 << 10;
constexpr uint64_t kStreamBytes = kMostStaging + kCounters * sizeof(unsigned);

/// Throws DeviceError naming the op and the error if there is one.
void check(cudaError_t error, std::string_view op);

class CudaProfile;

class CudaStream final : public Stream {
 public:
  /// The backend, of whose memory this takes, must outlive it.
  CudaStream(Backend& backend, int device);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void synchronize() override;
  bool replay(uint64_t key) override;
  void begin_recording(uint64_t key) override;
  void end_recording() override;
  void abandon_recording() noexcept override;
  void forget_recordings() override;
  bool begin_profile() override;
  StreamProfile end_profile() override;
  void reserve(uint64_t scratch_bytes) override;
  /// For what is queued next: sums that were left are queued now.
  cudaStream_t handle() {
    finish();
    return stream_;
  }

  /// Sums that an op leaves to the one behind it, which takes them or, by its handle(), has them made first.
  void leave(const RankSums& sums) { left_ = sums; }
  const RankSums* left() const { return left_ ? &*left_ : nullptr; }
  RankSums take() { return *std::exchange(left_, std::nullopt); }

  /// Copies bytes to the device in stream order; the host's bytes may change as soon as this returns. The device
  /// address is good for kernels queued before the next call that stages anything.
  const std::byte* stage(const void* host, uint64_t bytes);
  /// The same into memory of one's own.
  void copy_to_device(void* device, const void* host, uint64_t bytes);
  void copy_to_host(void* host, const void* device, uint64_t bytes);

  /// Contents are not kept from one op to the next.
  float* scratch(uint64_t floats);
  /// Zero before the first op; every op leaves them so. DeviceError if there are not so many.
  unsigned* counters(uint64_t n);
  /// Seconds that the device takes for what `work` queues: the median of a few runs, after some untimed.
  double seconds_of(const std::function<void()>& work);

 private:
  // The first pass under a key runs as it is and lets scratch grow; the second is captured.
  enum class Recording : uint8_t { kNone, kFirstPass, kCapture };
  struct Graph {
    uint64_t key;
    cudaGraphExec_t exec;
  };
  cudaGraphExec_t end_capture();
  void drop_graphs() noexcept;
  void finish();

  uint64_t room(uint64_t bytes);  // offset of free staging space
  void copy(void* to, const void* from, uint64_t bytes, cudaMemcpyKind kind, const char* what);
  void grow_staging(uint64_t bytes);

  Backend& backend_;
  int device_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<std::byte> pinned_;  // what is staged, at the same offsets on both sides
  Buffer staged_;
  uint64_t used_ = 0;
  std::optional<RankSums> left_;
  Buffer scratch_, counters_;
  Recording recording_ = Recording::kNone;
  uint64_t recording_key_ = 0;
  std::set<uint64_t> passed_;  // keys whose first pass is done, with the scratch that there is now
  std::list<Graph> graphs_;    // latest used first
  std::unique_ptr<CudaProfile> profile_;
  bool profiling_ = false;
};

}  // namespace ef::cuda
