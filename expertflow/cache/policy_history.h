// What the plain policies share: who is resident, when each expert was last wanted, and how often. History outlives
// residency. A policy on top of it is one function: a score, lower goes first.
#pragma once
#include <tuple>
#include <vector>

#include "expertflow/cache/policy.h"

namespace ef {

struct ExpertHistory {
  bool resident = false;
  uint32_t place = 0;       ///< index among the residents
  uint64_t last_event = 0;  ///< number of the layer event that touched it last, from 1; an insertion touches too
  uint64_t last_pass = 0;   ///< the same, counting only events of its own layer
  double frequency = 0;     ///< weight as of frequency_step; aged by the policy
  uint64_t frequency_step = 0;
};

/// Compared left to right, lower goes first; the cache key breaks the last tie.
using VictimScore = std::tuple<double, uint64_t, uint64_t>;

class HistoryPolicy : public EvictionPolicy {
 public:
  explicit HistoryPolicy(const PolicyContext& context) : layers_(context.layers) {}

  void on_access(const AccessEvent& event) override;
  void on_insert(ExpertKey key) override;
  void on_evict(ExpertKey key) override;
  /// O(n log n) in the residents: under a millisecond for 6,000, and asked for only when something must go.
  void rank_victims(LayerId current, std::vector<ExpertKey>& out) override;
  PolicyCounters counters() const override { return counters_; }

 protected:
  virtual VictimScore score(ExpertKey key, const ExpertHistory& history, LayerId current) const = 0;
  /// Adds one access to the frequency; an expert that serves many rows of an event counts once.
  virtual void count_access(ExpertHistory&) const {}

  uint64_t step() const { return step_; }  ///< of the latest event
  /// Events of `layer` so far.
  uint64_t passes(LayerId layer) const { return size_t(layer) < passes_.size() ? passes_[size_t(layer)] : 0; }
  /// Layer events from `current` until `layer` comes around: 1 for the next layer, the number of layers for `current`
  /// itself.
  uint64_t distance(LayerId layer, LayerId current) const;

 private:
  ExpertHistory& at(ExpertKey key);

  int layers_;
  uint64_t events_ = 0, step_ = 0;
  std::vector<uint64_t> passes_;                     // by layer
  std::vector<std::vector<ExpertHistory>> history_;  // by layer, by expert; rows grow on demand
  std::vector<ExpertKey> residents_;
  std::vector<std::pair<VictimScore, ExpertKey>> ranking_;  // scratch
  PolicyCounters counters_;
};

}  // namespace ef
