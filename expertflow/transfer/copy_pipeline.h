// Workers that fill the cache's slots from the slow tier. Demand copies go before prefetches, which take at most half
// of the workers, so that a demand finds one free; a queued prefetch can be cancelled or promoted; copies complete in
// any order. A failed read is tried again a bounded number of times; then the slot returns to the cache as free, with
// the error for whoever waits. It never becomes a resident expert.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "expertflow/base/clock.h"
#include "expertflow/cache/expert_cache.h"
#include "expertflow/transfer/bandwidth.h"
#include "expertflow/transfer/expert_reader.h"

namespace ef {

enum class CopyPriority : uint8_t { kDemand, kPrefetch };

struct Copy {
  ExpertKey key;
  std::span<std::byte> slot;  ///< granted by the cache, in flight
};

/// Called at named points of a copy, on the thread that passes them; a test orders threads by blocking in it.
/// "start" (taken from the queue), "filled", "retry", "complete" and "fail" (the cache knows).
using CopyHook = std::function<void(std::string_view point, ExpertKey key)>;

struct CopyPipelineOptions {
  int workers = 4;  ///< experts that are read at once, each by a lane of the reader
  int retries = 1;  ///< further attempts after a failed read
  CopyHook hook;    ///< tests only
};

struct CopyStats {
  uint64_t copies = 0, failed = 0, cancelled = 0, retries = 0;
  uint64_t bytes_read = 0;  ///< from the slow tier, by copies that succeeded
  uint64_t queued = 0, active = 0;
  double busy_seconds = 0;      ///< at least one copy was under way
  double bytes_per_second = 0;  ///< BandwidthEstimate: of late
};

class CopyPipeline {
 public:
  /// All arguments must outlive the pipeline. ConfigError if workers < 1.
  CopyPipeline(ExpertReader& reader, ExpertCache& cache, const Clock& clock, CopyPipelineOptions options = {});
  /// Cancels what is queued and waits for what is being copied.
  ~CopyPipeline();
  CopyPipeline(const CopyPipeline&) = delete;
  CopyPipeline& operator=(const CopyPipeline&) = delete;

  void submit(std::span<const Copy> copies, CopyPriority priority);
  /// A queued prefetch becomes a demand copy; nothing happens if it is not queued as one.
  void promote(ExpertKey key);
  /// Takes queued prefetches back, all or those that `which` picks; their slots are free again. Copies under way go on.
  /// Returns how many.
  size_t cancel_prefetches(const std::function<bool(ExpertKey)>& which = {});
  /// Returns when nothing is queued or active.
  void drain();
  CopyStats stats() const;

 private:
  void stop();
  void work(int lane);
  void copy(const Copy& job, int lane);
  bool may_prefetch() const;
  void at(std::string_view point, ExpertKey key) const {
    if (options_.hook) options_.hook(point, key);
  }

  ExpertReader& reader_;
  ExpertCache& cache_;
  const Clock& clock_;
  CopyPipelineOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<Copy> demand_, prefetch_;
  bool stop_ = false;
  uint64_t active_ = 0, active_prefetches_ = 0;
  BandwidthEstimate bandwidth_;
  CopyStats stats_;
  std::vector<std::thread> threads_;
};

}  // namespace ef
