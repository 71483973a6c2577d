// ARC (Megiddo and Modha, FAST 2003): T1 holds what was asked for once, T2 what was asked for again; B1 and B2 remember
// what left them. A request for something in B1 says that T1 is too small, one in B2 that T2 is: the target for T1
// follows. Each leaves by least recent use. The number of slots is what has been resident at most.
#include <algorithm>
#include <unordered_map>

#include "expertflow/cache/policy_table.h"

namespace ef {
namespace {

class ArcPolicy final : public HistoryPolicy {
 public:
  using HistoryPolicy::HistoryPolicy;
  std::string_view name() const override { return "arc"; }

  void on_access(const AccessEvent& event) override {
    HistoryPolicy::on_access(event);
    // A set of equals: what one of them says about the target does not depend on their order.
    double larger = 0;
    for (const ExpertId expert : event.experts) {
      Page& page = pages_[{event.layer, expert}];
      if (page.where == kT1) {
        move(page, kT2);
      } else if (page.where == kB1) {
        larger += std::max(1., double(count_[kB2]) / double(count_[kB1]));
        move(page, kRecalled);
      } else if (page.where == kB2) {
        larger -= std::max(1., double(count_[kB1]) / double(count_[kB2]));
        move(page, kRecalled);
      }
    }
    target_ = std::clamp(target_ + larger, 0., double(most_));
  }
  void on_insert(ExpertKey key) override {
    HistoryPolicy::on_insert(key);
    Page& page = pages_[key];
    move(page, page.where == kRecalled ? kT2 : kT1);
    most_ = std::max(most_, count_[kT1] + count_[kT2]);
  }
  void on_evict(ExpertKey key) override {
    HistoryPolicy::on_evict(key);
    Page& page = pages_[key];
    move(page, page.where == kT1 ? kB1 : kB2);
    page.left = ++evictions_;
    trim();
  }
  void rank_victims(LayerId, std::vector<ExpertKey>& out) override;

 protected:
  VictimScore score(ExpertKey, const ExpertHistory& history, LayerId) const override {
    return {0., history.last_event, 0};
  }

 private:
  enum Where : uint8_t { kNowhere, kRecalled, kT1, kT2, kB1, kB2, kWheres };
  struct Page {
    Where where = kNowhere;
    uint64_t left = 0;  // number of its eviction
  };
  void move(Page& page, Where to) {
    --count_[page.where];
    ++count_[to];
    page.where = to;
  }
  // |T1| + |B1| and |T2| + |B2| stay within the slots: the longest gone are forgotten.
  void trim() {
    for (const auto& [list, ghosts] : {std::pair(kT1, kB1), std::pair(kT2, kB2)}) {
      while (count_[ghosts] > 0 && count_[list] + count_[ghosts] > most_) {
        Page* oldest = nullptr;
        for (auto& [key, page] : pages_)
          if (page.where == ghosts && (!oldest || page.left < oldest->left)) oldest = &page;
        move(*oldest, kNowhere);
      }
    }
  }

  std::unordered_map<ExpertKey, Page> pages_;
  size_t count_[kWheres] = {};
  size_t most_ = 0;
  double target_ = 0;
  uint64_t evictions_ = 0;
};

void ArcPolicy::rank_victims(LayerId, std::vector<ExpertKey>& out) {
  using Ranked = std::pair<uint64_t, ExpertKey>;
  std::vector<Ranked> once, again;
  for_residents([&](ExpertKey key, const ExpertHistory& history) {
    (pages_[key].where == kT1 ? once : again).push_back({history.last_event, key});
  });
  std::sort(once.begin(), once.end());
  std::sort(again.begin(), again.end());
  out.clear();
  size_t i = 0, j = 0;
  while (i < once.size() || j < again.size()) {
    const bool from_once = j == again.size() || (i < once.size() && double(once.size() - i) > target_);
    out.push_back(from_once ? once[i++].second : again[j++].second);
  }
}

}  // namespace

std::unique_ptr<EvictionPolicy> make_arc(const PolicyContext& context) { return std::make_unique<ArcPolicy>(context); }

}  // namespace ef
