#include "expertflow/engine/metrics_json.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace ef {

using Json = nlohmann::ordered_json;

namespace {

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json counts_json(const PredictionCounts& c) {
  return {{"events", c.events},
          {"recall_at_k", c.recall_at_k()},
          {"recall_at_m", c.recall_at_m()},
          {"candidates", c.candidates()},
          {"exact_set", c.exact_set()},
          {"at_least_half", c.at_least_half()},
          {"ready_recall", c.ready_recall()},
          {"fetch_rate", c.fetch_rate()},
          {"good_prediction", c.good_prediction()}};
}

Json governor_json(const GovernorStats& g) {
  Json decisions = Json::array();
  for (const TrialResult& r : g.decisions)
    decisions.push_back({{"step", r.step},
                         {"on", r.on},
                         {"pairs", r.pairs},
                         {"on_seconds", r.on_seconds},
                         {"off_seconds", r.off_seconds},
                         {"ratio", r.ratio},
                         {"error", r.error},
                         {"reason", r.reason()}});
  std::array<Json, 2> used{Json::array(), Json::array()};
  for (size_t far = 0; far < 2; ++far)
    for (const PrefetchBucket& b : g.buckets[far])
      used[far].push_back(b.judged > 0 ? Json(b.used / b.judged) : Json(nullptr));
  return {{"mode", g.mode == PrefetchMode::kOn    ? "on"
                   : g.mode == PrefetchMode::kOff ? "off"
                                                  : "auto"},
          {"on", g.on},
          {"trying", g.trying},
          {"reason", g.reason()},
          {"steps_on", g.steps_on},
          {"steps_off", g.steps_off},
          {"candidates", g.candidates},
          {"issued", g.issued},
          {"unlikely", g.unlikely},
          {"over_budget", g.over_budget},
          {"over_share", g.over_share},
          {"cancelled", g.cancelled},
          {"used", g.used},
          {"unused", g.unused},
          {"issued_bytes", g.issued_bytes},
          {"used_bytes", g.used_bytes},
          {"unused_bytes", g.unused_bytes},
          {"layer_seconds", g.layer_seconds},
          {"idle_seconds_per_layer", g.idle_seconds_per_layer},
          {"budget_bytes", g.budget_bytes},
          {"used_share_by_probability", used[0]},
          {"used_share_by_probability_beyond_next", used[1]},
          {"trials", g.trials},
          {"decisions", decisions}};
}

Json controller_json(const StepControllerStats& c) {
  Json changes = Json::array();
  for (const StepChange& change : c.changes)
    changes.push_back({{"token", change.token},
                       {"from", change.from},
                       {"to", change.to},
                       {"formula", change.formula},
                       {"reason", change.reason}});
  return {{"distance", c.distance},
          {"formula", c.formula},
          {"offset", c.offset},
          {"expected_experts", c.expected},
          {"bandwidth_bytes_per_second", c.bandwidth},
          {"layer_seconds", c.layer_seconds},
          {"renewals", c.renewals},
          {"first", c.first},
          {"stalls", c.stalls},
          {"overfetches", c.overfetches},
          {"changes", changes}};
}

Json regimes_json(const RegimeStats& r) {
  Json regimes = Json::array(), changes = Json::array();
  for (const RegimeStats::Share& share : r.regimes)
    regimes.push_back({{"name", share.name}, {"steps", share.steps}, {"rows", share.rows}});
  for (const RegimeChange& change : r.changes)
    changes.push_back({{"step", change.step}, {"from", change.from}, {"to", change.to}, {"reason", change.reason}});
  return {{"name", r.name}, {"regimes", regimes}, {"candidates_capped", r.capped}, {"changes", changes}};
}

Json calibration_json(const LinkCalibration& c) {
  return {{"bytes_per_second", c.bytes_per_second}, {"bytes", c.bytes}, {"seconds", c.seconds}, {"runs", c.runs}};
}

Json prefetch_json(const ForesightStats& f) {
  return {{"predictor", f.predictor},
          {"horizon", f.horizon},
          {"adaptive", f.adaptive},
          {"predict_seconds", f.predict_seconds},
          {"distance", controller_json(f.controller)},
          {"regime", regimes_json(f.regimes)},
          {"governor", governor_json(f.governor)}};
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string value_text(const MetricHealth& metric, double value) {
  return metric.name == "p99_latency" ? fmt::format("{:.2f} ms", 1e3 * value) : percent(value);
}

}  // namespace

Json metrics_json(const ExpertMetrics& m, const ExpertStats& stats) {
  Json health = Json::array();
  for (const MetricHealth& metric : health_of(m))
    health.push_back({{"name", metric.name},
                      {"meaning", metric.meaning},
                      {"value", number(metric.value)},
                      {"least", metric.least},
                      {"most", std::isfinite(metric.most) ? Json(metric.most) : Json(nullptr)},
                      {"healthy", metric.healthy},
                      {"advice", metric.advice.empty() ? Json(nullptr) : Json(metric.advice)}});
  Json distances = Json::array();
  for (const PredictionCounts& counts : m.by_distance) distances.push_back(counts_json(counts));
  return {{"prediction_hit_rate", number(m.prediction_hit_rate)},
          {"expert_swap_rate", m.expert_swap_rate},
          {"token_defer_rate", number(m.token_defer_rate)},
          {"cache_utilization", number(m.cache_utilization)},
          {"p50_latency", number(m.p50_latency)},
          {"p95_latency", number(m.p95_latency)},
          {"p99_latency", number(m.p99_latency)},
          {"hit_rate", m.hit_rate},
          {"hits", m.hits},
          {"misses", m.misses},
          {"evictions", m.evictions},
          {"demand_bytes", m.demand_bytes},
          {"prefetch_bytes", m.prefetch_bytes},
          {"wasted_bytes", m.wasted_bytes},
          {"stall_seconds", m.stall_seconds},
          {"prediction", counts_json(m.prediction)},
          {"prediction_by_distance", distances},
          {"prefetch", stats.foresight ? prefetch_json(*stats.foresight) : Json(nullptr)},
          {"calibration", stats.calibration ? calibration_json(*stats.calibration) : Json(nullptr)},
          {"eager_evictions", stats.eager_evictions},
          {"grouped_events", stats.grouped_events},
          {"health", health}};
}

std::vector<std::string> metrics_lines(const ExpertMetrics& m, const ExpertStats& stats) {
  std::vector<std::string> lines;
  for (const MetricHealth& metric : health_of(m)) {
    if (!metric.value) continue;
    std::string line = fmt::format("{} {} ({})", metric.name, value_text(metric, *metric.value), metric.meaning);
    if (!metric.healthy)
      line += fmt::format("; healthy is {} to {}: {}", value_text(metric, metric.least),
                          value_text(metric, metric.most), metric.advice);
    lines.push_back(std::move(line));
  }
  if (m.prediction.events > 0) {
    const PredictionCounts& p = m.prediction;
    lines.push_back(fmt::format(
        "predicted, last look before each layer: recall@k {}, recall@m {} (m {:.1f}), exact set {}, half {}; ready in "
        "time {} of what was routed; fetch rate {}",
        percent(p.recall_at_k()), percent(p.recall_at_m()), p.candidates(), percent(p.exact_set()),
        percent(p.at_least_half()), percent(p.ready_recall()), percent(p.fetch_rate())));
  }
  for (size_t d = 0; d < m.by_distance.size() && m.by_distance.size() > 1; ++d)
    if (const PredictionCounts& p = m.by_distance[d]; p.events > 0)
      lines.push_back(fmt::format("predicted {} layers ahead: recall@k {}, recall@m {} (m {:.1f})", d + 1,
                                  percent(p.recall_at_k()), percent(p.recall_at_m()), p.candidates()));
  if (stats.calibration)
    lines.push_back(fmt::format("slow tier by calibration: {:.1f} MB/s ({:.1f} MB in {:.1f} ms, {} times)",
                                stats.calibration->bytes_per_second / 1e6, double(stats.calibration->bytes) / 1e6,
                                1e3 * stats.calibration->seconds, stats.calibration->runs));
  if (stats.foresight) {
    const RegimeStats& r = stats.foresight->regimes;
    for (const RegimeStats::Share& share : r.regimes)
      if (share.steps > 0)
        lines.push_back(fmt::format("regime \"{}\": {} steps, {} rows", share.name, share.steps, share.rows));
    if (!r.changes.empty())
      lines.push_back(fmt::format("latest change of regime: {} -> {} ({})", r.changes.back().from, r.changes.back().to,
                                  r.changes.back().reason));
    const GovernorStats& g = stats.foresight->governor;
    lines.push_back(fmt::format("prefetch {}; {} of {} steps with it; predictor {}, {} layers ahead{}", g.reason(),
                                g.steps_on, g.steps_on + g.steps_off, stats.foresight->predictor,
                                stats.foresight->horizon, stats.foresight->adaptive ? " (adaptive)" : ""));
    constexpr size_t kShown = 6;
    const auto& moves = stats.foresight->controller.changes;
    for (size_t i = moves.size() - std::min(moves.size(), kShown); i < moves.size(); ++i)
      lines.push_back(fmt::format("distance {} -> {} at token {} (the formula says {}): {}", moves[i].from, moves[i].to,
                                  moves[i].token, moves[i].formula, moves[i].reason));
    lines.push_back(
        fmt::format("prefetch: {} of {} candidates copied, {} used, {} not; left: {} unlikely, {} that could not "
                    "begin in time, {} beyond the share of memory; {} taken back; {:.1f} MB ahead, {:.1f} MB wasted",
                    g.issued, g.candidates, g.used, g.unused, g.unlikely, g.over_budget, g.over_share, g.cancelled,
                    double(m.prefetch_bytes) / 1e6, double(m.wasted_bytes) / 1e6));
  }
  return lines;
}

}  // namespace ef
