// What the experts' tiers and the predictor have done, under the names that operators look for, with the range in which
// each is healthy and what to do when it is not. A snapshot: take it between steps, hand it to any thread.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ef {

/// Predictions against what layers then asked for; "routed" experts are those of a layer's event, distinct, so that
/// with one row a step they are the router's k choices. Counts add up: a difference of two snapshots is the time
/// between.
struct PredictionCounts {
  uint64_t events = 0;       ///< layer events that had been predicted
  uint64_t routed = 0;       ///< experts that they asked for
  uint64_t named_first = 0;  ///< of them, among the as many likeliest predicted: recall@k
  uint64_t named = 0;        ///< of them, among all that were predicted: recall@m
  uint64_t predicted = 0;    ///< experts that were predicted
  uint64_t exact = 0;        ///< events whose k likeliest were the routed set
  uint64_t half = 0;         ///< events of whose routed set at least half was among the k likeliest
  uint64_t ready = 0;        ///< routed, predicted, and wholly resident when asked for
  double fetched = 0;        ///< sum over routed and predicted experts of the share that was resident when asked for
  PredictionCounts& operator+=(const PredictionCounts& other);
  PredictionCounts operator-(const PredictionCounts& other) const;
  // Shares, 0 before the first event.
  double recall_at_k() const;  ///< |k likeliest predicted and routed| / k
  double recall_at_m() const;  ///< |predicted and routed| / k
  double exact_set() const;    ///< predicted top-k equals the routed set
  double at_least_half() const;
  double ready_recall() const;  ///< routed experts that were predicted and fully resident at use
  double fetch_rate() const;    ///< share of a predicted expert that was already transferred at use
  double good_prediction() const { return recall_at_m() * fetch_rate(); }
  double candidates() const;  ///< mean m
};

struct ExpertMetrics {
  // The five of every dashboard; nothing where there is none.
  std::optional<double> prediction_hit_rate;  ///< recall@m of the predictor in use
  double expert_swap_rate = 0;                ///< experts that had to leave, for each that was asked for
  std::optional<double> token_defer_rate;     ///< tokens that waited for others' experts; set by who schedules tokens
  std::optional<double> cache_utilization;    ///< share of the fast tier that holds experts
  std::optional<double> p99_latency;          ///< seconds of a step of few rows, of the latest 1,024
  std::optional<double> p50_latency, p95_latency;

  // What decides which advice can help.
  bool all_resident = false;  ///< the fast tier has room for every expert: none is missed twice, evicted or read ahead
  bool reads_ahead = true;    ///< guessed experts may be read ahead
  int distance = 0;           ///< MoE layers that are looked ahead; 0: not known

  double hit_rate = 1;  ///< distinct experts that were resident when a layer asked for them
  uint64_t hits = 0, misses = 0, evictions = 0;
  uint64_t demand_bytes = 0;                  ///< read because a layer waited for them
  uint64_t prefetch_bytes = 0;                ///< read ahead
  uint64_t wasted_bytes = 0;                  ///< read ahead and gone again, or taken back under way, before any use
  double stall_seconds = 0;                   ///< compute waited for experts
  PredictionCounts prediction;                ///< by the predictions that copies were decided by
  std::vector<PredictionCounts> by_distance;  ///< [0]: one layer ahead; all that was predicted
};

/// One of the five, judged.
struct MetricHealth {
  std::string_view name;
  std::string_view meaning;
  std::optional<double> value;
  double least = 0, most = 0;  ///< the healthy range
  bool healthy = true;         ///< what has no value is, and what could be helped by nothing
  std::string advice;          ///< empty if healthy
};

/// All five, in the order of the struct. Below a few hundred accesses nothing is judged.
std::vector<MetricHealth> health_of(const ExpertMetrics& metrics);

/// Nearest rank: the smallest value that at least `share` of the values do not exceed; nothing of nothing.
std::optional<double> percentile(std::span<const double> values, double share);

}  // namespace ef
