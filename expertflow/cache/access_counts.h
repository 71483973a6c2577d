// How often each expert has been asked for since the cache was made: policies, metrics and profiles read the same
// numbers, from any thread, without a lock. A reader sees each counter whole; counters of one event may arrive one
// after another.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "expertflow/cache/policy.h"

namespace ef {

class AccessCounts {
 public:
  /// experts: by layer; 0: dense.
  explicit AccessCounts(const std::vector<int>& experts) {
    size_t all = 0;
    for (const int n : experts) {
      first_.push_back(all);
      all += size_t(n);
    }
    first_.push_back(all);
    events_ = std::vector<std::atomic<uint64_t>>(all);
    rows_ = std::vector<std::atomic<uint64_t>>(all);
  }
  void add(const AccessEvent& event) {
    for (size_t i = 0; i < event.experts.size(); ++i) {
      const size_t at = index({event.layer, event.experts[i]});
      events_[at].fetch_add(1, std::memory_order_relaxed);
      rows_[at].fetch_add(uint64_t(event.tokens[i]), std::memory_order_relaxed);
    }
  }
  /// Layer events that asked for it.
  uint64_t events(ExpertKey key) const { return events_[index(key)].load(std::memory_order_relaxed); }
  /// Rows that it served.
  uint64_t rows(ExpertKey key) const { return rows_[index(key)].load(std::memory_order_relaxed); }
  int layers() const { return int(first_.size()) - 1; }
  int experts(LayerId layer) const { return int(first_[size_t(layer) + 1] - first_[size_t(layer)]); }

 private:
  size_t index(ExpertKey key) const { return first_[size_t(key.layer)] + size_t(key.expert); }
  std::vector<size_t> first_;  // by layer: index of its expert 0; and the end
  std::vector<std::atomic<uint64_t>> events_, rows_;
};

}  // namespace ef
