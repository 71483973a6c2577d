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
  if (pairs == 0) return fmt::format("off without a trial: a step waits for {:.1f} % of its time", 100 * possible);
  return fmt::format("{} after {} pairs: {:.3f} ms a step with, {:.3f} ms without, ratio {:.3f} +- {:.3f}",
                     on ? "on" : "off", pairs, 1e3 * on_seconds, 1e3 * off_seconds, ratio, error);
}

void BenefitTrial::add(double seconds, double possible) {
  if (!on()) {
    const double keep = 1 - 1 / std::min(double(++possible_steps_), 32.);
    possible_ = keep * possible_ + (1 - keep) * std::clamp(possible, 0., 1.);
  }
  ++steps_;
  switch (phase_) {
    case Phase::kSettle:
      if (steps_ >= uint64_t(options_.settle)) consider_trial();
      return;
    case Phase::kTrial:
      block_.push_back(seconds);
      if (int(block_.size()) == options_.block) end_block();
      return;
    case Phase::kHold:
      ++held_;
      if (held_ >= hold_ || drifted(seconds)) consider_trial();
      return;
  }
}

// What is on is tried again whatever it may save: how much that is, only steps without it tell.
void BenefitTrial::consider_trial() {
  if (on_ || possible_ >= options_.least_possible) return begin_trial();
  hold_ = options_.hold;
  const bool known = !results_.empty() && results_.back().pairs == 0;
  if (known) results_.pop_back();
  TrialResult result;
  result.step = steps_, result.possible = possible_;
  conclude(std::move(result));
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
  const double clear = options_.clear * (1 + std::max(0., 5 - n) / 2);
  if (pair_ >= options_.least_pairs && mean + clear * error < wanted) return decide(true, mean, error);
  const bool clearly_off = pair_ >= options_.least_pairs && mean - options_.clear_off * error > wanted;
  if (clearly_off || pair_ >= options_.most_pairs) decide(false, mean, error);
}

void BenefitTrial::decide(bool on, double mean, double error) {
  const bool same = trials_ > 0 && on == on_;
  hold_ = same ? std::min(hold_ * 2, options_.most_hold) : options_.hold;
  // In steps: every block of the worse side took so much longer, or a standard error more.
  const double lost = (std::expm1(std::fabs(mean) + error) + options_.hidden_cost) * double(pair_ * options_.block);
  if (!on || same) hold_ = std::max(hold_, std::min(uint64_t(lost / options_.most_cost), options_.most_hold));
  agreed_ = same ? std::min(agreed_ + 1, 16) : 0;
  drift_hold_ = uint64_t(lost / options_.drift_cost) << agreed_;
  ++trials_;
  on_ = on;
  TrialResult result{steps_, on, pair_, median(ons_), median(offs_), std::exp(mean), std::exp(mean) * error, possible_};
  conclude(std::move(result));
}

void BenefitTrial::conclude(TrialResult result) {
  held_ = 0;
  usual_ = squares_ = recent_ = 0;
  phase_ = Phase::kHold;
  if (results_.size() == kKept) results_.erase(results_.begin());
  results_.push_back(std::move(result));
}

// The first steps after a decision say what is usual, and how much steps differ; later ones may depart from it.
bool BenefitTrial::drifted(double seconds) {
  constexpr double kUsual = 96, kRecent = 32;  // a text's own turns are shorter
  if (double(held_) <= kUsual) {
    usual_ += seconds / kUsual;
    squares_ += seconds * seconds / kUsual;
    recent_ = usual_ * kUsual / double(held_);
    return false;
  }
  recent_ += (seconds - recent_) / kRecent;
  if (double(held_) < 2 * kUsual) return false;
  // Variance of a mean of kUsual and of one that fades with kRecent, of steps that differ by themselves.
  const double variance = std::max(0., squares_ - usual_ * usual_) * (1 / kUsual + 1 / (2 * kRecent - 1));
  const double departed = std::fabs(recent_ - usual_), change = departed / usual_;
  if (departed <= options_.noise * std::sqrt(variance)) return false;
  const uint64_t leap_hold = agreed_ > 0 ? drift_hold_ / 4 : 0;
  return (held_ >= drift_hold_ && change > options_.drift) || (held_ >= leap_hold && change > options_.leap);
}

}  // namespace ef
