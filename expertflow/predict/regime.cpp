#include "expertflow/predict/regime.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace ef {
namespace {

constexpr std::array kRegimes = {
    Regime{"few rows: likely experts only", 1, 0.5f, 1.0, 1.0, false, false},
    Regime{"some rows: by probability mass", 32, 0.05f, 1.0, 0.75, false, false},
    Regime{"many rows: conservative", 257, 0.5f, 0.25, 0.25, true, false},
    Regime{"many rows, grouped by embedding", 512, 0.5f, 0.25, 0.25, true, true},
};
constexpr size_t kMostChanges = 16;

}  // namespace

const Regime& regime_of(int64_t rows) {
  size_t i = kRegimes.size() - 1;
  while (i > 0 && rows < kRegimes[i].rows) --i;
  return kRegimes[i];
}

RegimeTracker::RegimeTracker() : now_(&kRegimes[0]) {
  for (const Regime& regime : kRegimes) stats_.regimes.push_back({regime.name});
}

const Regime& RegimeTracker::begin_step(int64_t rows) {
  const Regime* const next = &regime_of(rows);
  ++steps_;
  RegimeStats::Share& share = stats_.regimes[size_t(next - kRegimes.data())];
  ++share.steps, share.rows += uint64_t(rows);
  if (next != now_) {
    if (stats_.changes.size() == kMostChanges) stats_.changes.pop_front();
    const std::string bound = next->rows > now_->rows ? fmt::format("{} or more", next->rows)
                                                      : fmt::format("fewer than {}", (next + 1)->rows);
    stats_.changes.push_back({steps_, now_->name, next->name, fmt::format("a step of {} rows: {}", rows, bound)});
  }
  now_ = next;
  stats_.name = next->name;
  return *next;
}

bool RegimeTracker::admits(float probability, int taken, int experts) {
  const auto most = std::max(1, int(std::ceil(now_->candidate_share * experts)));
  const bool admitted = probability >= now_->least_probability && taken < most;
  stats_.capped += !admitted;
  return admitted;
}

}  // namespace ef
