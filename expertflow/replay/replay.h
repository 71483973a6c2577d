// One run of a trace under a virtual clock: the engine's own cache and policy, a modelled link, and layers that compute
// for as long as they did or as long as one says. A layer's event is one event: its hits are pinned before its misses
// take slots. Deterministic: equal arguments, equal results to the last bit.
//
// In time: a layer runs attention and router, then its event opens. What is missing is queued as demand; behind it,
// what the forecast says of layers within the distance. Experts that are near compute at once, one after the other, the
// others as they arrive; the layer waits (stall) when none is left to compute.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "expertflow/predict/candidates.h"
#include "expertflow/predict/step_controller.h"
#include "expertflow/replay/forecast.h"
#include "expertflow/replay/link_model.h"
#include "expertflow/sched/prefetch_governor.h"

namespace ef {

struct ReplayOptions {
  /// Of replay_policies(). One that knows the future has room beside the budget for what a layer's event brings in, and
  /// gives it back when the layer has computed: what is not worth keeping passes by (bypass), as in the clairvoyant
  /// bound.
  std::string policy = "next-use";
  uint64_t budget_bytes = 0;
  LinkOptions link;
  double before_router = 0.4;  ///< share of a layer's compute that passes before its event opens
  int distance = 1;            ///< layers ahead; 0: adaptive (step_controller.h)
  int most_distance = 8;
  /// Of a row: what the forecast names, policies hear, and the adaptive distance counts.
  CandidateRules candidates;
  // What of it is copied ahead
  float least_probability = 0.25f;
  double pool_share = 0.25;  ///< of the budget, for experts that no event has asked for yet
  bool within_link = true;   ///< no more than the link can carry until the layer's turn
  bool advise_only = false;  ///< policies hear what is predicted, nothing is copied ahead
  bool scores = true;        ///< policies hear what routers say of near misses, in steps of few rows
  /// Who decides what is copied ahead: nothing, the rules above; else the governor and the regimes of the engine, of
  /// the above with least_probability alone.
  std::optional<PrefetchMode> governor;
  double first_renewal = 0;     ///< adaptive: calibrated bandwidth to begin with, 0: the link's
  double diversity_gain = 0.2;  ///< adaptive: StepControllerOptions
  /// Changes of the link while it runs: its bandwidth from that token on.
  std::vector<std::pair<uint64_t, double>> link_changes;
};

struct ReplayResult {
  uint64_t steps = 0, tokens = 0, accesses = 0;
  uint64_t hits = 0;    ///< near when asked for
  uint64_t late = 0;    ///< on their way when asked for
  uint64_t misses = 0;  ///< neither
  uint64_t bytes_demand = 0, bytes_ahead = 0;
  uint64_t bytes_wasted = 0;  ///< copied ahead and evicted, or left at the end, before anybody asked
  uint64_t ahead = 0, ahead_cancelled = 0, ahead_used = 0;
  uint64_t predicted = 0;  ///< accesses that the forecast had named within the distance
  uint64_t ready = 0;      ///< of them, near when asked for: ready-on-time recall is this over accesses
  double compute_seconds = 0, stall_seconds = 0, total_seconds = 0;
  uint64_t stalls = 0;  ///< layers that waited
  double mean_distance = 0;
  uint64_t distance_within = 0;  ///< steps whose distance was within 1 of the formula's value at that moment
  StepControllerStats distance;  ///< adaptive only
  std::vector<std::pair<uint64_t, int>> distances;  ///< adaptive: token and S, at each change
  std::optional<GovernorStats> governor;

  uint64_t bytes() const { return bytes_demand + bytes_ahead; }
  double hit_rate() const { return accesses ? double(hits) / double(accesses) : 0; }
  double miss_rate() const { return accesses ? double(misses + late) / double(accesses) : 0; }
  double ready_recall() const { return accesses ? double(ready) / double(accesses) : 0; }
};

/// ConfigError: unknown policy, a budget that holds no expert, options out of range.
ReplayResult replay(const Workload& workload, Forecast& forecast, const ReplayOptions& options);

/// Bytes that no cache of this size could have avoided, from an empty start.
uint64_t clairvoyant_bytes(const Workload& workload, uint64_t budget_bytes);

}  // namespace ef
