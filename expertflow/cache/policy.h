// An eviction policy only orders. The cache owns slots and pins: it feeds whole layer events in order, asks for ranked
// victims, and skips those that are pinned. Single-threaded (the cache's lock), deterministic (clock and seed
// injected).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "expertflow/base/clock.h"
#include "expertflow/base/ids.h"

namespace ef {

/// All experts that one layer of one step asked for, at once (one-at-a-time replay inflates recency policies by 27-29 %
/// misses).
struct AccessEvent {
  uint64_t step = 0;
  LayerId layer = 0;
  std::span<const ExpertId> experts;  ///< distinct
  std::span<const int32_t> tokens;    ///< rows served by each of them; same length
  int64_t rows = 0;                   ///< of the step; 0: unknown
};

struct PolicyCounters {
  uint64_t events = 0, accesses = 0, insertions = 0, evictions = 0;
};

class AccessCounts;  // access_counts.h

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual std::string_view name() const = 0;
  /// Accesses are recorded whether the expert is resident or not: frequency outlives residency.
  virtual void on_access(const AccessEvent& event) = 0;
  virtual void on_insert(ExpertKey key) = 0;
  virtual void on_evict(ExpertKey key) = 0;
  /// Candidates: experts predicted to be needed soon, with probabilities, of whole layers only what is likely. A policy
  /// may protect them. Default: ignored.
  virtual void on_prediction(std::span<const std::pair<ExpertKey, float>> /*ranked*/) {}
  /// What the layer's router says of its coming event: the mean over rows of the probability of each expert that is
  /// among some row's 2 k likeliest, chosen or only nearly so. Before its on_access(), if at all. Default: ignored.
  virtual void on_scores(LayerId /*layer*/, std::span<const std::pair<ExpertId, float>> /*probable*/) {}
  /// Whether on_scores() is of use: what is not heard need not be computed.
  virtual bool wants_scores() const { return false; }
  /// Counts of all accesses, kept by the cache, which outlives the policy's use of them. Default: ignored.
  virtual void use_counts(const AccessCounts& /*counts*/) {}
  /// All residents, the one to go first in front. `current` is the layer being run (layers behind it come around
  /// latest).
  virtual void rank_victims(LayerId current, std::vector<ExpertKey>& out) = 0;
  virtual PolicyCounters counters() const = 0;
};

struct LayerEvent;  // clairvoyant.h

struct PolicyContext {
  int layers = 0;  ///< decoder layers of the model
  const Clock* clock = nullptr;
  uint64_t seed = 0;
  const std::vector<LayerEvent>* future = nullptr;  ///< all events to come, where they are known: in a replay
};
struct PolicyInfo {
  std::string_view name;  ///< as the flag takes it: "next-use"
  std::string_view summary;
  std::unique_ptr<EvictionPolicy> (*make)(const PolicyContext&);
  bool needs_future = false;
};
std::span<const PolicyInfo> policies();         ///< policies.cpp: the one table, without those that need the future
std::span<const PolicyInfo> replay_policies();  ///< all of it
/// ConfigError that lists the known names, or that says why this one is not to be had.
std::unique_ptr<EvictionPolicy> make_policy(std::string_view name, const PolicyContext& context);

}  // namespace ef
