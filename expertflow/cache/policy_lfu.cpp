// Least frequently used, with counters that are halved every 128 steps, so that yesterday's topic does not hold its
// experts for ever: a count of n is forgotten after log2(n) such periods. Equal counts: the one that was
// asked for less often in all goes first, then the older one.
#include <cmath>

#include "expertflow/cache/policy_table.h"

namespace ef {
namespace {

constexpr uint64_t kPeriod = 128;  // steps; the half-life that llama.cpp's expert cache settled on

class LfuPolicy final : public HistoryPolicy {
 public:
  using HistoryPolicy::HistoryPolicy;
  std::string_view name() const override { return "lfu"; }

 protected:
  VictimScore score(ExpertKey key, const ExpertHistory& history, LayerId) const override {
    return {aged(history), accesses(key), history.last_event};
  }
  void count_access(ExpertHistory& history) const override {
    history.frequency = aged(history) + 1;
    history.frequency_step = step();
  }

 private:
  // Halved at each multiple of the period that lies between then and now: exact in binary.
  double aged(const ExpertHistory& history) const {
    const uint64_t periods = step() / kPeriod - history.frequency_step / kPeriod;
    return periods > 1000 ? 0. : std::ldexp(history.frequency, -int(periods));
  }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lfu(const PolicyContext& context) { return std::make_unique<LfuPolicy>(context); }

}  // namespace ef
