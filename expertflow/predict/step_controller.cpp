#include "expertflow/predict/step_controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

constexpr size_t kMostChanges = 64;
constexpr double kKeep = 0.875;  // of an average, from step to step: eight steps or so

}  // namespace

double pairwise_distance(std::span<const float> embeddings, int64_t rows) {
  if (rows < 2) return 0;
  EF_DCHECK(embeddings.size() % size_t(rows) == 0);
  const size_t dim = embeddings.size() / size_t(rows);
  std::vector<double> sum(dim);
  double squares = 0;
  for (size_t i = 0; i < embeddings.size(); ++i) {
    const double v = embeddings[i];
    squares += v * v;
    sum[i % dim] += v;
  }
  double norm = 0;
  for (const double s : sum) norm += s * s;
  return std::max(0., double(rows) * squares - norm);
}

StepController::StepController(const StepControllerOptions& options) : options_(options) {
  EF_CHECK(options.most >= 1, ConfigError, "prediction distance: expected a limit of 1 or more, found {}",
           options.most);
  EF_CHECK(options.renew_tokens >= 1 && options.stall_threshold >= 1 && options.overfetch_threshold >= 1, ConfigError,
           "prediction distance: expected thresholds of 1 or more, found {}, {} and {}", options.renew_tokens,
           options.stall_threshold, options.overfetch_threshold);
  stats_.expected = options.expected;
  stats_.bandwidth = options.bandwidth;
  stats_.layer_seconds = options.layer_seconds;
  ratio_ = ratio_of(options.expected, options.bandwidth, options.layer_seconds);
  stats_.formula = formula_of(ratio_);
  distance_ = stats_.first = stats_.formula;
}

double StepController::ratio_of(double expected, double bandwidth, double layer_seconds) const {
  return bandwidth > 0 && layer_seconds > 0 ? expected * options_.expert_bytes / (bandwidth * layer_seconds) : 0.;
}

int StepController::formula_of(double ratio) const {
  // A hair above a whole number is the rounding of the averages, not another layer.
  return int(std::clamp(std::ceil(ratio - 1e-6), 1., double(options_.most)));
}

void StepController::on_layer(double expected, double seconds) {
  expected_.add(expected, 1);
  layer_.add(seconds, 1);
}

void StepController::on_copies(double bytes, double busy_seconds) { bandwidth_.add(bytes, busy_seconds); }

void StepController::on_calibration(double bytes_per_second) {
  if (bytes_per_second <= 0) return;
  bandwidth_ = {bytes_per_second, 1};
  renew("calibrated");
}

void StepController::on_stall() {
  ++stats_.stalls;
  ++stall_run_;
}

void StepController::on_prefetch(bool in_time) {
  if (in_time) {
    overfetch_run_ = 0;
    return;
  }
  ++stats_.overfetches;
  ++overfetch_run_;
}

void StepController::on_hits(uint64_t hits, uint64_t accesses) {
  hits_ += hits;
  accesses_ += accesses;
}

void StepController::on_diversity(double pairwise) {
  const double usual = diversity_.value(pairwise);
  spread_ = usual > 0 ? pairwise / usual : 1.;
  diversity_.fade(kKeep);
  diversity_.add(pairwise, 1);
}

double StepController::expected_now() const {
  const double gain = options_.diversity_gain * std::clamp(spread_ - 1, -1., 1.);
  return expected_.value(stats_.expected) * (1 + gain);
}

void StepController::end_step(int64_t rows) {
  stats_.tokens += uint64_t(rows);
  since_renewal_ += rows;
  const double latest =
      ratio_of(expected_now(), bandwidth_.value(stats_.bandwidth), layer_.value(stats_.layer_seconds));
  const bool measured = expected_.weight > 0;
  if (since_renewal_ >= options_.renew_tokens) {
    renew("renewed");
  } else if (measured && std::abs(latest - ratio_) > options_.renew_change * std::max(ratio_, 1.)) {
    renew("conditions changed");
  }
  if (stall_run_ >= options_.stall_threshold) {
    move(+1, fmt::format("compute waited for {} copies", stall_run_));
    stall_run_ = 0;
  }
  if (overfetch_run_ >= options_.overfetch_threshold) {
    move(-1, fmt::format("{} copies in a row were unused or far too early", overfetch_run_));
    overfetch_run_ = 0;
  }
  for (Average* average : {&expected_, &bandwidth_, &layer_}) average->fade(kKeep);
  spread_ = 1;
}

void StepController::renew(const char* why) {
  const bool regular = since_renewal_ >= options_.renew_tokens;
  stats_.expected = expected_now();
  stats_.bandwidth = bandwidth_.value(stats_.bandwidth);
  stats_.layer_seconds = layer_.value(stats_.layer_seconds);
  ratio_ = ratio_of(stats_.expected, stats_.bandwidth, stats_.layer_seconds);
  ++stats_.renewals;
  const int formula = formula_of(ratio_);
  // What was learned about another value does not hold for this one.
  if (formula != stats_.formula) stats_.offset = 0;
  stats_.formula = formula;
  settle(fmt::format("{}: {:.2f} experts of {:.0f} bytes at {:.3g} B/s, a layer takes {:.3g} s", why, stats_.expected,
                     options_.expert_bytes, stats_.bandwidth, stats_.layer_seconds));
  if (!regular) return;
  if (accesses_ > 0 && double(hits_) > options_.high_hit_rate * double(accesses_))
    move(+1, fmt::format("hit rate {:.1f} %", 100 * double(hits_) / double(accesses_)));
  hits_ = accesses_ = 0;
  since_renewal_ = 0;
}

void StepController::move(int by, const std::string& reason) {
  stats_.offset = std::clamp(stats_.offset + by, -1, 1);
  settle(reason);
}

void StepController::settle(const std::string& reason) {
  const int to = std::clamp(stats_.formula + stats_.offset, 1, options_.most);
  if (to == distance_) return;
  if (stats_.changes.size() == kMostChanges) stats_.changes.pop_front();
  stats_.changes.push_back({stats_.tokens, distance_, to, stats_.formula, reason});
  distance_ = to;
}

StepControllerStats StepController::stats() const {
  StepControllerStats out = stats_;
  out.distance = distance_;
  return out;
}

}  // namespace ef
