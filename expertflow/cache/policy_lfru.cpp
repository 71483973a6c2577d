// Frequency over age: the expert with the lowest f / (age + 1) goes first, the best causal order in 12 of the 13
// workloads of arXiv 2608.07911. f loses half of its weight every 128 steps. age counts the events of the expert's own
// layer since it was last wanted, so that a layer that has just run looks no fresher than one that is about to. Equal
// scores: the layer that comes around latest goes first.
#include <cmath>

#include "expertflow/cache/policy_table.h"

namespace ef {
namespace {

constexpr double kHalfLife = 128;  // steps

class LfruPolicy final : public HistoryPolicy {
 public:
  using HistoryPolicy::HistoryPolicy;
  std::string_view name() const override { return "lfru"; }

 protected:
  VictimScore score(ExpertKey key, const ExpertHistory& history, LayerId current) const override {
    const uint64_t age = passes(key.layer) - history.last_pass;
    return {aged(history) / double(age + 1), ~distance(key.layer, current), history.last_event};
  }
  void count_access(ExpertHistory& history) const override {
    history.frequency = aged(history) + 1;
    history.frequency_step = step();
  }

 private:
  double aged(const ExpertHistory& history) const {
    return history.frequency * std::exp2(-double(step() - history.frequency_step) / kHalfLife);
  }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lfru(const PolicyContext& context) {
  return std::make_unique<LfruPolicy>(context);
}

}  // namespace ef
