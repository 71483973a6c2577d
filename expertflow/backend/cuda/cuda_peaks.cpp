#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "expertflow/backend/cuda/cuda_stream.h"
#include "expertflow/backend/cuda/device/params.h"
#include "expertflow/backend/cuda_backend.h"
#include "expertflow/base/errors.h"

namespace ef {
namespace {

using cuda::check;
using cuda::CudaStream;

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDefault), "make an event"); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

template <class F>
double seconds_of(CudaStream& stream, const F& work) {
  const Event begin, end;
  check(cudaEventRecord(begin.get(), stream.handle()), "record an event");
  work();
  check(cudaEventRecord(end.get(), stream.handle()), "record an event");
  check(cudaEventSynchronize(end.get()), "wait for an event");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "read an event");
  return double(milliseconds) * 1e-3;
}

// The median of several tries, after some that bring the clocks up.
template <class F>
double median_seconds(CudaStream& stream, const F& work) {
  constexpr int kTries = 15;
  constexpr auto kWarmUp = std::chrono::milliseconds(100);
  const auto start = std::chrono::steady_clock::now();
  do seconds_of(stream, work);
  while (std::chrono::steady_clock::now() - start < kWarmUp);
  std::vector<double> seconds(kTries);
  for (double& s : seconds) s = seconds_of(stream, work);
  std::nth_element(seconds.begin(), seconds.begin() + kTries / 2, seconds.end());
  return seconds[kTries / 2];
}

}  // namespace

CudaPeaks cuda_peaks(int device, uint64_t most_bytes) {
  constexpr uint64_t kLeast = 64 << 20, kSink = 256;
  const uint64_t bytes = std::min(most_bytes, cuda_memory(device).free / 8);
  EF_CHECK(bytes >= kLeast, DeviceError, "cuda:{}: expected {} bytes of memory to measure its speed in, found {}",
           device, kLeast, bytes);
  const std::unique_ptr<Backend> backend = make_cuda_backend(device);
  CudaStream stream(*backend, device);
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes + kSink), "allocate memory to read");
  const std::unique_ptr<void, void (*)(void*)> owner(memory, [](void* p) { (void)cudaFree(p); });
  std::byte* const data = static_cast<std::byte*>(memory);
  check(cudaMemsetAsync(data, 0, bytes + kSink, stream.handle()), "clear memory to read");

  CudaPeaks peaks;
  peaks.read_buffer = bytes;
  double read = 0;
  const double read_seconds = median_seconds(stream, [&] {
    const cuda::ProbeRead probe = cuda::probe_read(data, bytes, data + bytes, stream.handle());
    check(probe.error, "read memory");
    read = double(probe.bytes);
  });
  peaks.read = read / read_seconds;

  double operations = 0;
  const auto multiply = [&](int64_t rounds) {
    const cuda::ProbeProducts probe = cuda::probe_products(rounds, data + bytes, stream.handle());
    check(probe.error, "multiply matrices");
    operations = probe.operations;
  };
  // So many rounds that starting the kernel is nothing beside them.
  constexpr int64_t kFirst = 16;
  constexpr double kSeconds = 2e-3;
  const double once = median_seconds(stream, [&] { multiply(kFirst); });
  const int64_t rounds = kFirst * std::max<int64_t>(1, int64_t(kSeconds / once));
  const double seconds = median_seconds(stream, [&] { multiply(rounds); });
  peaks.half = operations / seconds;
  return peaks;
}

}  // namespace ef
