// Belady's rule: what is used again latest goes first. It takes the recorded run itself, so only a replay can have it;
// there it is also free to let pass by what is not worth a slot (ExpertCache::trim).
#include <algorithm>
#include <limits>

#include "expertflow/base/errors.h"
#include "expertflow/cache/clairvoyant.h"
#include "expertflow/cache/policy_table.h"

namespace ef {
namespace {

class BeladyPolicy final : public HistoryPolicy {
 public:
  explicit BeladyPolicy(const PolicyContext& context) : HistoryPolicy(context) {
    for (size_t i = 0; i < context.future->size(); ++i)
      for (const ExpertId expert : (*context.future)[i].experts)
        uses_[{(*context.future)[i].layer, expert}].push_back(i);
  }
  std::string_view name() const override { return "belady"; }

 protected:
  VictimScore score(ExpertKey key, const ExpertHistory&, LayerId) const override {
    const auto never = -std::numeric_limits<double>::infinity();
    const auto it = uses_.find(key);
    if (it == uses_.end()) return {never, 0, 0};
    // Events that have been accessed are over; the next one has their number as its index.
    const auto next = std::lower_bound(it->second.begin(), it->second.end(), events());
    return {next == it->second.end() ? never : -double(*next), 0, 0};
  }

 private:
  std::unordered_map<ExpertKey, std::vector<uint64_t>> uses_;  // indices of the events that ask for it, ascending
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_belady(const PolicyContext& context) {
  EF_DCHECK(context.future != nullptr);
  return std::make_unique<BeladyPolicy>(context);
}

}  // namespace ef
