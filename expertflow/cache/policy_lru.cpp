// Least recently used: the expert that was wanted longest ago goes first. Experts of one event are equally old.
#include "expertflow/cache/policy_table.h"

namespace ef {
namespace {

class LruPolicy final : public HistoryPolicy {
 public:
  using HistoryPolicy::HistoryPolicy;
  std::string_view name() const override { return "lru"; }

 protected:
  VictimScore score(ExpertKey, const ExpertHistory& history, LayerId) const override {
    return {0., history.last_event, 0};
  }
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru(const PolicyContext& context) { return std::make_unique<LruPolicy>(context); }

}  // namespace ef
