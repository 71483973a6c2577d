// Times every kernel and copy of a stream by itself, by an event between each and the next. The device is held back
// until a step is queued or waited for, so that what is seen is its time and not that of the queueing. One thread at a
// time.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "expertflow/backend/backend.h"
#include "expertflow/backend/cuda/device/launch_watch.h"

namespace ef::cuda {

/// "matvec<(Fmt)4, 1>" of a kernel's mangled name: without where it is from and what it takes.
std::string plain_name(const char* mangled);

class CudaProfile final : public LaunchWatch {
 public:
  explicit CudaProfile(cudaStream_t stream) : stream_(stream) {}
  ~CudaProfile();
  CudaProfile(const CudaProfile&) = delete;
  CudaProfile& operator=(const CudaProfile&) = delete;

  /// Kernels of this thread on the stream are timed until end().
  void begin();
  StreamProfile end();

  /// The device may run: somebody is about to wait for it.
  void let_go();
  /// Somebody has waited for the stream: time that passes before the next piece of work is nobody's.
  void restart() { last_ = kNone; }

  cudaError_t before(cudaStream_t) override;
  cudaError_t after(const void* kernel, cudaStream_t) override;
  /// name: a literal.
  cudaError_t after_copy(const char* name);

 private:
  struct Hold {
    std::mutex mutex;
    std::condition_variable change;
    bool over = false;
  };
  struct Item {
    const void* kernel;
    const char* copy;
    size_t from, to;  // of events_
  };
  static constexpr size_t kNone = size_t(-1);
  static void wait(void* hold);
  cudaError_t hold();
  cudaError_t mark(size_t& event);
  std::vector<double> item_seconds();  // of all items; waits, and forgets them
  void measure_own();

  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  size_t used_ = 0, last_ = kNone;
  std::vector<Item> items_;
  std::vector<std::unique_ptr<Hold>> holds_;  // the last one is not over while held_
  bool held_ = false, measured_ = false;
  double added_ = 0, empty_ = 0;
};

}  // namespace ef::cuda
