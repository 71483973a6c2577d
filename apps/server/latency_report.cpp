#include "apps/server/latency_report.h"

#include <algorithm>
#include <string_view>

#include "expertflow/engine/expert_metrics.h"

namespace ef::server {

void LatestValues::add(double value) {
  if (values_.size() < most_)
    values_.push_back(value);
  else
    values_[count_ % most_] = value;
  ++count_;
  sum_ += value;
}

void SlaOptions::check() const {
  EF_CHECK(ttft > 0, ConfigError, "--sla-ttft: expected more than 0 seconds, found {}", ttft);
  EF_CHECK(itl > 0, ConfigError, "--sla-itl: expected more than 0 seconds, found {}", itl);
  EF_CHECK(cold >= 0, ConfigError, "--cold: expected 0 or more requests, found {}", cold);
}

LatencyReport::LatencyReport(const SlaOptions& options) : options_(options) { options.check(); }

void LatencyReport::on_start(const CompletionTimes& times) {
  const std::lock_guard lock(mutex_);
  if (++started_ <= options_.cold) last_cold_ = times.started;
}

LatencyReport::Phase LatencyReport::phase_of(const CompletionTimes& times) const {
  const bool began = times.started.count() > 0;
  return began ? (times.started <= last_cold_ ? kCold : kWarm) : (started_ < options_.cold ? kCold : kWarm);
}

void LatencyReport::on_token(const CompletionTimes& times, Duration since) {
  const std::lock_guard lock(mutex_);
  figures_[phase_of(times)].itl.add(seconds(since));
}

void LatencyReport::on_end(const CompletionTimes& times, const char* finish) {
  const std::string_view how = finish;
  const bool failed = how == "error", answered = times.first_token.count() > 0;
  if (how == "abort" || (!failed && !answered)) return;
  const std::lock_guard lock(mutex_);
  Figures& f = figures_[phase_of(times)];
  ++f.requests;
  f.failed += failed;
  if (!answered) return;
  const double ttft = seconds(times.first_token - times.submitted);
  f.ttft.add(ttft);
  const double decode = seconds(times.ended - times.first_token);
  const double itl = times.generated_tokens > 1 ? decode / double(times.generated_tokens - 1) : 0;
  f.within += !failed && ttft <= options_.ttft && itl <= options_.itl;
}

LatencyReport::Figures LatencyReport::figures(Phase phase) const {
  const std::lock_guard lock(mutex_);
  return figures_[phase];
}

namespace {

Json spread(const LatestValues& v) {
  if (v.count() == 0) return nullptr;
  return {{"mean", v.sum() / double(v.count())},
          {"p50", *percentile(v.values(), .5)},
          {"p95", *percentile(v.values(), .95)},
          {"p99", *percentile(v.values(), .99)},
          {"max", *std::max_element(v.values().begin(), v.values().end())}};
}

}  // namespace

Json LatencyReport::json() const {
  Json out{{"sla", {{"ttft_seconds", options_.ttft}, {"itl_seconds", options_.itl}, {"cold_requests", options_.cold}}}};
  for (const Phase phase : {kCold, kWarm}) {
    const Figures f = figures(phase);
    out[kPhases[phase]] = {{"requests", f.requests},
                           {"failed", f.failed},
                           {"sla_share", f.requests ? Json(f.share()) : Json(nullptr)},
                           {"ttft_seconds", spread(f.ttft)},
                           {"itl_seconds", spread(f.itl)}};
  }
  return out;
}

}  // namespace ef::server
