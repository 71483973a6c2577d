// Many replays of some traces: every policy with every predictor, distance and budget, in threads, each beside LRU
// without copies ahead and the clairvoyant bound of the same trace and budget.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "expertflow/replay/replay.h"

namespace ef {

struct NamedWorkload {
  std::string name;
  Workload workload;
};
using ForecastMaker = std::function<std::unique_ptr<Forecast>(std::string_view name, const NamedWorkload& workload)>;

struct SweepOptions {
  std::vector<std::string> policies = {"next-use"};
  std::vector<std::string> predictors = {"none"};
  std::vector<int> distances = {1};             ///< 0: adaptive
  std::vector<double> diversity_gains = {0.2};  ///< of adaptive distances
  std::vector<double> shares = {0.4};           ///< of all experts' bytes
  std::vector<double> bandwidths = {1e9};       ///< bytes per second
  ReplayOptions base;                           ///< the rest
  int threads = 1;
};

struct SweepRow {
  std::string trace, policy, predictor;
  int distance = 0;
  double diversity_gain = 0;  ///< adaptive only
  double share = 0, bandwidth = 0;
  uint64_t budget_bytes = 0;
  ReplayResult result;
  uint64_t lru_bytes = 0, clairvoyant_bytes = 0;
  double lru_stall_seconds = 0;  ///< of LRU on demand
  /// Of the bytes that LRU reads beyond the clairvoyant bound, the share that this one saves; everything that it copied
  /// counts. 0 where there is no gap.
  double gap_closed() const;
};

/// In the order of the lists: trace, share, bandwidth, policy, predictor, distance, gain, whatever the threads do.
/// progress(done, all) from any thread, one at a time; may be empty. Without a predictor all distances are one: only
/// the first is run.
std::vector<SweepRow> sweep(const std::vector<NamedWorkload>& workloads, const SweepOptions& options,
                            const ForecastMaker& make, const std::function<void(uint64_t, uint64_t)>& progress = {});

}  // namespace ef
