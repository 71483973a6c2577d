#include "expertflow/sched/benefit_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ef {

namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace

std::string TrialResult::reason() const {
  return fmt::format("{} after {} pairs: {:.3f} ms a step with, {:.3f} ms without, ratio {:.3f} +- {:.3f}",
                     on ? "on" : "off", pairs, 1e3 * on_seconds, 1e3 * off_seconds, ratio, error);
}

void BenefitTrial::add(double seconds) {
  ++steps_;
  switch (phase_) {
    case Phase::kSettle:
      if (steps_ >= uint64_t(options_.settle)) begin_trial();
      return;
    case Phase::kTrial:
      block_.push_back(seconds);
      if (int(block_.size()) == options_.block) end_block();
      return;
    case Phase::kHold:
      ++held_;
      if (held_ >= hold_ || drifted(seconds)) begin_trial();
      return;
  }
}

void BenefitTrial::begin_trial() {
  phase_ = Phase::kTrial;
  pair_ = side_ = 0;
  block_.clear(), logs_.clear(), ons_.clear(), offs_.clear();
}

void BenefitTrial::end_block() {
  const double time = median({block_.begin() + (block_.size() > 1 ? 1 : 0), block_.end()});
  block_.clear();
  (side_on() ? ons_ : offs_).push_back(time);
  if (side_ == 0) {
    side_ = 1;
    return;
  }
  logs_.push_back(std::log(std::max(ons_.back(), 1e-9) / std::max(offs_.back(), 1e-9)));
  side_ = 0;
  ++pair_;
  judge();
}

void BenefitTrial::judge() {
  const double n = double(logs_.size());
  double mean = 0, squares = 0;
  for (const double v : logs_) mean += v / n;
  for (const double v : logs_) squares += (v - mean) * (v - mean);
  const double error = n > 1 ? std::sqrt(squares / (n - 1) / n) : 0;
  const double wanted = std::log1p(-options_.gain);
  if (pair_ >= options_.least_pairs && mean + options_.clear * error < wanted) return decide(true, mean, error);
  if (pair_ >= options_.least_pairs && mean - options_.clear * error > wanted) return decide(false, mean, error);
  if (pair_ >= options_.most_pairs) decide(mean + error < wanted, mean, error);
}

void BenefitTrial::decide(bool on, double mean, double error) {
  const bool same = trials_ > 0 && on == on_;
  hold_ = same ? std::min(hold_ * 2, options_.most_hold) : options_.hold;
  ++trials_;
  on_ = on;
  held_ = 0;
  usual_ = recent_ = 0;
  phase_ = Phase::kHold;
  TrialResult result{steps_, on, pair_, median(ons_), median(offs_), std::exp(mean), std::exp(mean) * error};
  if (results_.size() == kKept) results_.erase(results_.begin());
  results_.push_back(std::move(result));
}

// The first steps after a decision say what is usual; later ones may depart from it.
bool BenefitTrial::drifted(double seconds) {
  constexpr uint64_t kUsual = 32;
  constexpr double kKeep = 1 - 1.0 / 16;
  if (held_ <= kUsual) {
    usual_ += seconds / double(kUsual);
    recent_ = usual_ * double(kUsual) / double(held_);
    return false;
  }
  recent_ = kKeep * recent_ + (1 - kKeep) * seconds;
  return held_ >= 2 * kUsual && std::fabs(recent_ / usual_ - 1) > options_.drift;
}

}  // namespace ef
