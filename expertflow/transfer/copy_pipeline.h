// Workers that fill the cache's slots from the slow tier. Demand copies go before prefetches: these take at most half
// of the workers, so that a demand finds one free, begin when no demand is queued or under way, nearest layer first,
// and pause between two parts while one is. A prefetch, queued or under way, can be cancelled or promoted; copies
// complete in any order. A failed read is tried again a bounded number of times; then the slot returns to the cache as
// free, with the error for whoever waits. It never becomes a resident expert.
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
/// "start" (taken from the queue), "filled", "retry", "complete", "fail" and "cancel" (the cache knows).
using CopyHook = std::function<void(std::string_view point, ExpertKey key)>;

struct CopyPipelineOptions {
  int workers = 4;  ///< experts that are read at once, each by a lane of the reader
  int retries = 1;  ///< further attempts after a failed read
  /// Bytes that a prefetch reads between two looks at the queue, at most: as much as the slow tier gives in 200 us, but
  /// 256 KiB at least.
  uint64_t prefetch_part = 2 << 20;
  CopyHook hook;  ///< tests only
};

struct CopyStats {
  uint64_t copies = 0, failed = 0, cancelled = 0, retries = 0;
  uint64_t bytes_read = 0;       ///< from the slow tier, by copies that succeeded
  uint64_t bytes_ahead = 0;      ///< of them, by prefetches that nobody asked for meanwhile
  uint64_t bytes_cancelled = 0;  ///< read by prefetches that were cancelled under way; not in bytes_read
  uint64_t pauses = 0;           ///< a prefetch under way waited for demands
  uint64_t queued = 0, active = 0;
  uint64_t prefetch_bytes = 0;     ///< of prefetches, queued or still to be read
  double busy_seconds = 0;         ///< at least one copy was under way
  double demand_busy_seconds = 0;  ///< at least one demand was queued or under way
  double bytes_per_second = 0;     ///< BandwidthEstimate: of late
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
  /// A prefetch becomes a demand copy, queued or under way; nothing happens if there is none.
  void promote(ExpertKey key);
  /// Share of an expert under way that has come; 0 if it is not.
  double progress(ExpertKey key) const;
  /// Takes queued prefetches back, all or those that `which` picks; their slots are free again. Those under way end at
  /// their next part, unless they are promoted before. Returns how many were queued.
  size_t cancel_prefetches(const std::function<bool(ExpertKey)>& which = {});
  /// Returns when nothing is queued or active.
  void drain();
  CopyStats stats() const;

 private:
  void stop();
  void work(int lane);
  void copy(const Copy& job, int lane);
  void queue_prefetch(const Copy& copy);
  uint64_t part() const;
  uint64_t checkpoint(int lane, uint64_t done);
  bool may_prefetch() const;
  bool demanding() const { return !demand_.empty() || active_demands_ > 0; }
  void note_demand();
  void finished(int lane);
  void at(std::string_view point, ExpertKey key) const {
    if (options_.hook) options_.hook(point, key);
  }

  ExpertReader& reader_;
  ExpertCache& cache_;
  const Clock& clock_;
  CopyPipelineOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_, resume_;
  std::deque<Copy> demand_, prefetch_;
  bool stop_ = false;
  struct Lane {  // a worker's copy
    bool active = false, ahead = false, cancelled = false;
    ExpertKey key;
    uint64_t done = 0, told = 0;  // bytes that have come; of them, those that the bandwidth estimate knows
  };
  std::vector<Lane> lanes_;
  uint64_t active_ = 0, active_prefetches_ = 0, active_demands_ = 0;
  BandwidthEstimate bandwidth_;
  bool demand_noted_ = false;  // since demand_since_
  Duration demand_since_{0}, demand_total_{0};
  CopyStats stats_;
  std::vector<std::thread> threads_;
};

}  // namespace ef
