// Two queues, as in the adaptive scheduler of arXiv 2510.26730. Into the high queue want: what is predicted within the
// distance that is looked ahead, what the last 5 layers used, what was used less than 300 ms ago, and, while there is
// room, whatever has not been idle for over 10 layers. It takes them in this order up to its share; the rest is the low
// queue. Low leaves first, each queue by least recent use, what is predicted last of all. Predicted is what is named to
// it: candidates, not every expert that has some probability, or whole layers would be.
//
// The share is 70 % where one layer is looked ahead and grows by 5 % for each further one: what is predicted needs
// room. It bounds the protections too: where tokens come fast, most of the cache was used within 300 ms, and of that
// the longest unused falls to the low queue. Of the other 30 %, 25 are the low queue's own and 5 the reserve: the share
// never grows into it, so there is always something to give away.
#include <algorithm>

#include "expertflow/cache/policy_table.h"

namespace ef {
namespace {

constexpr uint64_t kRecentLayers = 5, kIdleLayers = 10;
constexpr Duration kProtected = std::chrono::milliseconds(300);
constexpr double kHigh = 0.70, kReserve = 0.05, kMoreALayer = 0.05;

class LruHighLowPolicy final : public HistoryPolicy {
 public:
  explicit LruHighLowPolicy(const PolicyContext& context) : HistoryPolicy(context), clock_(context.clock) {}
  std::string_view name() const override { return "lru-high-low"; }
  void on_access(const AccessEvent& event) override {
    HistoryPolicy::on_access(event);
    for (const ExpertId expert : event.experts) times_[{event.layer, expert}] = now();
  }
  void on_insert(ExpertKey key) override {
    HistoryPolicy::on_insert(key);
    times_[key] = now();
  }
  void rank_victims(LayerId current, std::vector<ExpertKey>& out) override;

 protected:
  VictimScore score(ExpertKey, const ExpertHistory& history, LayerId) const override {
    return {0., history.last_event, 0};
  }

 private:
  enum Claim : uint8_t { kPredicted, kRecent, kRest, kIdle };
  struct Ranked {
    Claim claim;
    uint64_t last_event;
    ExpertKey key;
  };
  Duration now() const { return clock_ ? clock_->now() : Duration(0); }
  Claim claim_of(ExpertKey key, uint64_t last_event) const;

  const Clock* clock_;
  std::unordered_map<ExpertKey, Duration> times_;
};

LruHighLowPolicy::Claim LruHighLowPolicy::claim_of(ExpertKey key, uint64_t last_event) const {
  if (predicted(key) > 0) return kPredicted;
  const uint64_t age = events() - last_event;
  if (age < kRecentLayers) return kRecent;
  // A clock that stands still (or none) protects nobody.
  const auto it = times_.find(key);
  if (clock_ && now() > Duration(0) && it != times_.end() && now() - it->second < kProtected) return kRecent;
  return age > kIdleLayers ? kIdle : kRest;
}

void LruHighLowPolicy::rank_victims(LayerId, std::vector<ExpertKey>& out) {
  std::vector<Ranked> all;
  for_residents([&](ExpertKey key, const ExpertHistory& history) {
    all.push_back({claim_of(key, history.last_event), history.last_event, key});
  });
  const auto by_claim = [](const Ranked& a, const Ranked& b) {
    if (a.claim != b.claim) return a.claim < b.claim;
    return a.last_event != b.last_event ? a.last_event > b.last_event : a.key > b.key;
  };
  std::sort(all.begin(), all.end(), by_claim);
  const double share = std::min(1 - kReserve, kHigh + kMoreALayer * double(std::max(predicted_layers(), 1) - 1));
  const auto claimants =
      size_t(std::count_if(all.begin(), all.end(), [](const Ranked& r) { return r.claim != kIdle; }));
  const auto high = all.begin() + std::ptrdiff_t(std::min(claimants, size_t(share * double(all.size()))));
  const auto by_age = [](const Ranked& a, const Ranked& b) {
    return a.last_event != b.last_event ? a.last_event < b.last_event : a.key < b.key;
  };
  std::sort(high, all.end(), by_age);
  std::sort(all.begin(), high, [&](const Ranked& a, const Ranked& b) {
    const bool predicted_a = a.claim == kPredicted, predicted_b = b.claim == kPredicted;
    return predicted_a != predicted_b ? predicted_b : by_age(a, b);
  });
  std::rotate(all.begin(), high, all.end());  // low, then high
  out.clear();
  for (const Ranked& ranked : all) out.push_back(ranked.key);
}

}  // namespace

std::unique_ptr<EvictionPolicy> make_lru_high_low(const PolicyContext& context) {
  return std::make_unique<LruHighLowPolicy>(context);
}

}  // namespace ef
