// What the plain policies share: who is resident, when each expert was last wanted, and how often. History outlives
// residency. A policy on top of it is one function: a score, lower goes first.
#pragma once
#include <tuple>
#include <unordered_map>
#include <vector>

#include "expertflow/cache/access_counts.h"
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
  /// Holds until the layer's next event, or the next prediction that names the layer.
  void on_prediction(std::span<const std::pair<ExpertKey, float>> ranked) override;
  /// O(n log n) in the residents: under a millisecond for 6,000, and asked for only when something must go.
  void rank_victims(LayerId current, std::vector<ExpertKey>& out) override;
  void use_counts(const AccessCounts& counts) override { counts_ = &counts; }
  PolicyCounters counters() const override { return counters_; }

 protected:
  virtual VictimScore score(ExpertKey key, const ExpertHistory& history, LayerId current) const = 0;
  /// Adds one access to the frequency; an expert that serves many rows of an event counts once.
  virtual void count_access(ExpertHistory&) const {}

  /// Events that asked for the expert since the beginning; 0 where nobody counts.
  uint64_t accesses(ExpertKey key) const { return counts_ ? counts_->events(key) : 0; }
  uint64_t step() const { return step_; }      ///< of the latest event
  uint64_t events() const { return events_; }  ///< so far
  /// Probability with which the expert was predicted for its layer's next event; 0: it was not.
  double predicted(ExpertKey key) const {
    const auto it = predicted_.find(key);
    return it == predicted_.end() ? 0. : double(it->second);
  }
  bool layer_predicted(LayerId layer) const {
    return size_t(layer) < predictions_.size() && predictions_[size_t(layer)];
  }
  int predicted_layers() const { return predicted_layers_; }  ///< that a prediction has named and that have not come
  template <class Visit>
  void for_residents(Visit&& visit) {
    for (const ExpertKey key : residents_) visit(key, at(key));
  }
  /// Events of `layer` so far.
  uint64_t passes(LayerId layer) const { return size_t(layer) < passes_.size() ? passes_[size_t(layer)] : 0; }
  /// Layer events from `current` until `layer` comes around: 1 for the next layer, the number of layers for `current`
  /// itself.
  uint64_t distance(LayerId layer, LayerId current) const;

 private:
  ExpertHistory& at(ExpertKey key);
  void forget_prediction(LayerId layer);

  int layers_;
  const AccessCounts* counts_ = nullptr;
  uint64_t events_ = 0, step_ = 0;
  std::vector<uint64_t> passes_;                     // by layer
  std::vector<std::vector<ExpertHistory>> history_;  // by layer, by expert; rows grow on demand
  std::vector<ExpertKey> residents_;
  std::unordered_map<ExpertKey, float> predicted_;
  std::vector<char> predictions_;  // by layer
  int predicted_layers_ = 0;
  std::vector<std::pair<VictimScore, ExpertKey>> ranking_;  // scratch
  PolicyCounters counters_;
};

}  // namespace ef
