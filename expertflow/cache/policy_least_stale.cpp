// Least-Stale (the idea of SpecMD: layers run in a fixed cycle). An expert is stale if its layer's latest pass did not
// want it. Stale ones go first, the longest unwanted in front. Among the fresh ones, layers that this token has already
// passed go before those still ahead, the one that comes around latest in front: in a cycle, what was used last is
// needed last.
#include "expertflow/cache/policy_table.h"

namespace ef {
namespace {

class LeastStalePolicy final : public HistoryPolicy {
 public:
  using HistoryPolicy::HistoryPolicy;
  std::string_view name() const override { return "least-stale"; }

 protected:
  VictimScore score(ExpertKey key, const ExpertHistory& history, LayerId current) const override {
    if (history.last_pass < passes(key.layer)) return {0., history.last_event, 0};
    return {1., ~distance(key.layer, current), history.last_event};
  }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_least_stale(const PolicyContext& context) {
  return std::make_unique<LeastStalePolicy>(context);
}

}  // namespace ef
