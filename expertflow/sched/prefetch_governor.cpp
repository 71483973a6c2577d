#include "expertflow/sched/prefetch_governor.h"

#include <algorithm>

#include "expertflow/base/errors.h"

namespace ef {

PrefetchMode parse_prefetch_mode(const std::string& text) {
  if (text == "off") return PrefetchMode::kOff;
  if (text == "on") return PrefetchMode::kOn;
  if (text == "auto") return PrefetchMode::kAuto;
  fail<ConfigError>("async-prefetch: expected on, off or auto, found \"{}\"", text);
}

std::string GovernorStats::reason() const {
  if (mode == PrefetchMode::kOff) return "off: asked for";
  if (mode == PrefetchMode::kOn) return "on: asked for";
  if (trying) return "being tried";
  return decisions.empty() ? "off: not tried yet" : decisions.back().reason();
}

PrefetchGovernor::PrefetchGovernor(const GovernorOptions& options) : options_(options) { stats_.mode = options.mode; }

void PrefetchGovernor::begin_step(Duration now, int64_t rows) {
  rows_ = rows;
  step_begin_ = now;
  layer_known_ = false;
  issued_.clear();  // of a step that did not end
  const bool possible = options_.mode != PrefetchMode::kOff && rows <= options_.most_rows;
  ahead_ = possible && (options_.mode == PrefetchMode::kOn || trial().on());
}

void PrefetchGovernor::end_step(Duration now, double waited_seconds) {
  for (const auto& [key, issued] : issued_) judge(issued, false);  // layers that never came
  issued_.clear();
  if (options_.mode == PrefetchMode::kOff || rows_ > options_.most_rows) return;
  ++(ahead_ ? stats_.steps_on : stats_.steps_off);
  const double took = seconds(now - step_begin_);
  if (options_.mode == PrefetchMode::kAuto) trial().add(took, took > 0 ? waited_seconds / took : 0.);
}

void PrefetchGovernor::on_event(LayerId layer, std::span<const ExpertId> wanted, const LinkView& link, Duration now) {
  if (rows_ > options_.most_rows) return;
  if (layer_known_) {
    const auto average = [](double& mean, double value) {
      constexpr double kKeep = 0.95;
      mean = mean == 0 ? value : kKeep * mean + (1 - kKeep) * value;
    };
    const double layer = seconds(now - layer_begin_);
    average(stats_.layer_seconds, layer);
    average(stats_.idle_seconds_per_layer, std::max(0., layer - (link.demand_busy_seconds - layer_busy_)));
  }
  layer_known_ = true;
  layer_begin_ = now;
  layer_busy_ = link.demand_busy_seconds;
  for (auto it = issued_.lower_bound({layer, -1}); it != issued_.end() && it->first.layer == layer;) {
    judge(it->second, std::binary_search(wanted.begin(), wanted.end(), it->first.expert));
    it = issued_.erase(it);
  }
}

void PrefetchGovernor::judge(const Issued& issued, bool used) {
  constexpr double kRemembered = 512;
  ++(used ? stats_.used : stats_.unused);
  (used ? stats_.used_bytes : stats_.unused_bytes) += issued.bytes;
  PrefetchBucket& bucket = stats_.buckets[issued.distance > 1][bucket_of(issued.probability)];
  bucket.judged += 1;
  bucket.used += used;
  if (bucket.judged > kRemembered) bucket.judged /= 2, bucket.used /= 2;
}

// What became of its like; until enough is known, what the predictor says.
double PrefetchGovernor::expected(float probability, int distance) const {
  constexpr double kPrior = 8;
  const PrefetchBucket& bucket = stats_.buckets[distance > 1][bucket_of(probability)];
  return (bucket.used + kPrior * double(probability)) / (bucket.judged + kPrior);
}

// What the link moves until the layer's turn, less what is on its way. Demand's part of it is not taken off: most of
// what is copied ahead would be demand otherwise, and the rest waits. Nothing where demand leaves the link no time at
// all.
double PrefetchGovernor::budget_bytes(int distance, const LinkView& link) const {
  if (stats_.idle_seconds_per_layer <= 0) return 0;
  const double seconds = stats_.layer_seconds * double(distance) * options_.budget_share;
  return link.bytes_per_second * seconds - double(link.prefetch_bytes);
}

PrefetchPlan PrefetchGovernor::plan(std::span<const PrefetchCandidate> candidates,
                                    std::span<const std::pair<ExpertKey, float>> likely, uint64_t held_bytes,
                                    const LinkView& link) {
  PrefetchPlan plan;
  stats_.candidates += candidates.size();
  stats_.budget_bytes = uint64_t(std::max(0., budget_bytes(1, link)));
  for (auto it = issued_.begin(); it != issued_.end();) {
    if (still_likely(it->first, it->second.distance, likely)) {
      ++it;
      continue;
    }
    plan.cancel.push_back(it->first);
    ++stats_.cancelled;
    it = issued_.erase(it);
  }
  choose(candidates, held_bytes, link, plan);
  for (const PrefetchCandidate& candidate : plan.issue) {
    issued_[candidate.key] = {candidate.probability, candidate.distance, candidate.bytes};
    ++stats_.issued;
    stats_.issued_bytes += candidate.bytes;
  }
  return plan;
}

// What is said of a layer replaces what was said before; of other layers nothing new is known.
bool PrefetchGovernor::still_likely(ExpertKey key, int distance,
                                    std::span<const std::pair<ExpertKey, float>> likely) const {
  bool layer_named = false;
  for (const auto& [other, probability] : likely) {
    layer_named |= other.layer == key.layer;
    if (other == key) return expected(probability, distance) >= options_.least_kept;
  }
  return !layer_named;
}

void PrefetchGovernor::choose(std::span<const PrefetchCandidate> candidates, uint64_t held_bytes, const LinkView& link,
                              PrefetchPlan& plan) {
  std::vector<std::pair<double, const PrefetchCandidate*>> likely;
  for (const PrefetchCandidate& candidate : candidates) {
    const double share = expected(candidate.probability, candidate.distance);
    if (issued_.count(candidate.key) > 0) continue;
    if (share < (candidate.distance > 1 ? options_.least_far : options_.least_expected))
      ++stats_.unlikely;
    else
      likely.emplace_back(share, &candidate);
  }
  // Likeliest first; of equals the nearest.
  std::stable_sort(likely.begin(), likely.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second->distance < b.second->distance;
  });
  std::map<int, double> due;  // bytes issued for each distance
  const auto fits = [&](const PrefetchCandidate& c) {
    due[c.distance];
    double before = 0;  // copied first, or to be done by then
    for (const auto& [distance, issued] : due) {
      before += issued;
      if (distance >= c.distance && before >= budget_bytes(distance, link)) return false;
    }
    return true;
  };
  const double most_held = options_.pool_share * double(options_.pool_bytes);
  double held = double(held_bytes);
  for (const auto& [share, candidate] : likely) {
    if (held + double(candidate->bytes) > most_held) {
      ++stats_.over_share;
    } else if (!fits(*candidate)) {
      ++stats_.over_budget;
    } else {
      held += double(candidate->bytes);
      due[candidate->distance] += double(candidate->bytes);
      plan.issue.push_back(*candidate);
    }
  }
  std::stable_sort(plan.issue.begin(), plan.issue.end(),
                   [](const auto& a, const auto& b) { return a.distance < b.distance; });
}

void PrefetchGovernor::drop(ExpertKey key) {
  const auto it = issued_.find(key);
  if (it == issued_.end()) return;
  --stats_.issued, ++stats_.over_share;
  stats_.issued_bytes -= it->second.bytes;
  issued_.erase(it);
}

GovernorStats PrefetchGovernor::stats() const {
  GovernorStats stats = stats_;
  const auto it = trials_.find(size_class());
  if (options_.mode == PrefetchMode::kAuto && it != trials_.end()) {
    stats.on = it->second.on();
    stats.trying = it->second.trying();
    stats.trials = it->second.trials();
    stats.decisions = it->second.results();
  } else {
    stats.on = options_.mode == PrefetchMode::kOn;
  }
  return stats;
}

}  // namespace ef
