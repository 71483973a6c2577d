#include "expertflow/engine/expert_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ef {

namespace {

double share(double part, uint64_t all) { return all > 0 ? part / double(all) : 0.; }

}  // namespace

PredictionCounts& PredictionCounts::operator+=(const PredictionCounts& o) {
  events += o.events, routed += o.routed, named_first += o.named_first, named += o.named, predicted += o.predicted;
  exact += o.exact, half += o.half, ready += o.ready, fetched += o.fetched;
  return *this;
}

PredictionCounts PredictionCounts::operator-(const PredictionCounts& o) const {
  PredictionCounts out = *this;
  out.events -= o.events, out.routed -= o.routed, out.named_first -= o.named_first, out.named -= o.named;
  out.predicted -= o.predicted, out.exact -= o.exact, out.half -= o.half, out.ready -= o.ready;
  out.fetched -= o.fetched;
  return out;
}

double PredictionCounts::recall_at_k() const { return share(double(named_first), routed); }
double PredictionCounts::recall_at_m() const { return share(double(named), routed); }
double PredictionCounts::exact_set() const { return share(double(exact), events); }
double PredictionCounts::at_least_half() const { return share(double(half), events); }
double PredictionCounts::ready_recall() const { return share(double(ready), routed); }
double PredictionCounts::fetch_rate() const { return share(fetched, named); }
double PredictionCounts::candidates() const { return share(double(predicted), events); }

std::vector<MetricHealth> health_of(const ExpertMetrics& m) {
  constexpr uint64_t kEnough = 500;  // accesses
  constexpr double kNone = std::numeric_limits<double>::infinity();
  // What a step takes depends on the machine; that its slowest are several times its usual does not.
  constexpr double kSlowest = 3;
  const double usual = m.p50_latency.value_or(0);
  // More memory, a better guess or a faster disk change nothing where no expert is missed any more.
  const bool missed = !m.all_resident;
  std::string predict = "train a predictor on text like this (expertflow train-predictor)";
  if (m.distance != 1) predict += ", or predict fewer layers ahead (--prediction-horizon 1)";
  std::string defer = "let tokens wait less (--token-schedule-window, --aging-threshold)";
  if (missed) defer += ", or give experts more memory";
  std::vector<MetricHealth> all = {
      {"prediction_hit_rate", "routed experts that had been predicted", m.prediction_hit_rate, 0.8, 1, true,
       missed && m.reads_ahead ? predict : ""},
      {"expert_swap_rate", "experts that had to leave, for each that was asked for", m.expert_swap_rate, 0, 0.25, true,
       missed ? "give experts more memory (--expert-memory), or store them smaller (expertflow quantize)" : ""},
      {"token_defer_rate", "tokens that waited for others' experts", m.token_defer_rate, 0, 0.1, true, defer},
      {"cache_utilization", "share of the fast tier that holds experts", m.cache_utilization, 0.85, 1, true,
       missed ? "warm up (--warmup profile), or give the memory to a longer context: the model does not need it"
              : "give the memory to a longer context: all experts are in the rest of it"},
      {"p99_latency", "seconds of the slowest step in a hundred", m.p99_latency, 0,
       usual > 0 ? kSlowest * usual : kNone, true,
       missed
           ? "cold experts make steps uneven: give experts more memory, or take other load off what they are read from"
           : "all experts have room in memory: look for other load on this machine's processors"}};
  for (MetricHealth& metric : all) {
    // What is out of range by what has been, and cannot come again, needs nothing done.
    const bool judged = metric.value.has_value() && m.hits + m.misses >= kEnough && !metric.advice.empty();
    metric.healthy = !judged || (*metric.value >= metric.least && *metric.value <= metric.most);
    if (metric.healthy) metric.advice.clear();
  }
  return all;
}

std::optional<double> percentile(std::span<const double> values, double share) {
  if (values.empty()) return std::nullopt;
  std::vector<double> sorted(values.begin(), values.end());
  const auto rank = size_t(std::ceil(share * double(sorted.size())));
  const size_t at = std::min(std::max<size_t>(rank, 1), sorted.size()) - 1;
  std::nth_element(sorted.begin(), sorted.begin() + std::ptrdiff_t(at), sorted.end());
  return sorted[at];
}

}  // namespace ef
