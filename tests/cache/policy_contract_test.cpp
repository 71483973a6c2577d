// Every row of the policy table keeps the contract of cache/policy.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "expertflow/base/errors.h"
#include "expertflow/cache/clairvoyant.h"
#include "tests/support/test_name.h"

namespace ef {
namespace {

constexpr int kLayers = 6, kExperts = 16;

// Feeds a policy random whole-layer events and mirrors what is resident.
class Driver {
 public:
  Driver(EvictionPolicy& policy, uint64_t seed) : policy_(policy), random_(seed) {}

  AccessEvent next_event() {
    chosen_.clear();
    while (chosen_.size() < 3) {
      const ExpertId e = ExpertId(random_() % kExperts);
      if (std::find(chosen_.begin(), chosen_.end(), e) == chosen_.end()) chosen_.push_back(e);
    }
    tokens_.assign(3, 1);
    const LayerId layer = LayerId(events_ % kLayers);
    return {events_++ / kLayers, layer, chosen_, tokens_};
  }
  // One event as the cache plays it: access, evict in ranked order down to the limit, insert what is missing.
  void play(size_t limit) {
    const AccessEvent event = next_event();
    policy_.on_access(event);
    std::vector<ExpertKey> missing;
    for (const ExpertId e : event.experts)
      if (!resident_.count({event.layer, e})) missing.push_back({event.layer, e});
    std::vector<ExpertKey> ranked;
    policy_.rank_victims(event.layer, ranked);
    last_ranking_ = ranked;
    for (size_t i = 0; i < ranked.size() && resident_.size() + missing.size() > limit; ++i) evict(ranked[i]);
    for (const ExpertKey key : missing) insert(key);
  }
  void insert(ExpertKey key) {
    policy_.on_insert(key);
    resident_.insert(key);
    ++inserted_;
  }
  void evict(ExpertKey key) {
    policy_.on_evict(key);
    ASSERT_EQ(resident_.erase(key), 1u);
    ++evicted_;
  }

  std::set<ExpertKey> resident_;
  std::vector<ExpertKey> last_ranking_;
  uint64_t inserted_ = 0, evicted_ = 0, events_ = 0;

 private:
  EvictionPolicy& policy_;
  std::mt19937_64 random_;
  std::vector<ExpertId> chosen_;
  std::vector<int32_t> tokens_;
};

class PolicyContract : public ::testing::TestWithParam<std::string_view> {
 protected:
  std::unique_ptr<EvictionPolicy> make() const { return make_policy(GetParam(), {kLayers, &clock_, 7, &nothing_}); }
  ManualClock clock_;
  const std::vector<LayerEvent> nothing_;  // of the future is known, whoever asks
};

TEST_P(PolicyContract, RanksEveryResidentOnceAndNobodyElse) {
  auto policy = make();
  Driver driver(*policy, 1);
  std::vector<ExpertKey> ranked = {{3, 3}};  // must be cleared
  policy->rank_victims(0, ranked);
  EXPECT_TRUE(ranked.empty());
  for (int i = 0; i < 400; ++i) {
    driver.play(20);
    policy->rank_victims(LayerId(i % kLayers), ranked);
    std::vector<ExpertKey> sorted = ranked;
    std::sort(sorted.begin(), sorted.end());
    ASSERT_EQ(sorted, std::vector<ExpertKey>(driver.resident_.begin(), driver.resident_.end())) << "event " << i;
  }
  EXPECT_EQ(driver.resident_.size(), 20u);
}

TEST_P(PolicyContract, RankingIsDeterministicAndHasNoSideEffect) {
  auto one = make(), two = make();
  Driver a(*one, 2), b(*two, 2);
  std::vector<ExpertKey> extra;
  for (int i = 0; i < 300; ++i) {
    a.play(24);
    b.play(24);
    ASSERT_EQ(a.last_ranking_, b.last_ranking_) << "event " << i;
    two->rank_victims(0, extra);  // asked more often, and for another layer
  }
}

TEST_P(PolicyContract, OrderOfInsertionAndOfExpertsInAnEventDoesNotMatter) {
  auto one = make(), two = make();
  const std::vector<ExpertId> forward = {1, 4, 9}, backward = {9, 4, 1};
  const std::vector<int32_t> tokens = {1, 1, 1};
  one->on_access({0, 2, forward, tokens});
  two->on_access({0, 2, backward, tokens});
  for (const ExpertId e : forward) one->on_insert({2, e});
  for (const ExpertId e : backward) two->on_insert({2, e});
  std::vector<ExpertKey> a, b;
  one->rank_victims(3, a);
  two->rank_victims(3, b);
  EXPECT_EQ(a, b);
  // Experts of one event are equals: only the key tells them apart.
  EXPECT_EQ(a, (std::vector<ExpertKey>{{2, 1}, {2, 4}, {2, 9}}));
}

TEST_P(PolicyContract, AccessesOfAbsentExpertsAreRemembered) {
  auto policy = make();
  const std::vector<int32_t> token = {1};
  const std::vector<ExpertId> absent = {5}, other = {6};
  policy->on_access({0, 1, absent, token});
  policy->on_access({0, 2, other, token});
  EXPECT_EQ(policy->counters().accesses, 2u);
  std::vector<ExpertKey> ranked;
  policy->rank_victims(1, ranked);
  EXPECT_TRUE(ranked.empty());
}

TEST_P(PolicyContract, EvictedExpertsReturn) {
  auto policy = make();
  policy->on_insert({0, 1});
  policy->on_insert({0, 2});
  policy->on_insert({5, 15});
  policy->on_evict({0, 1});
  std::vector<ExpertKey> ranked;
  policy->rank_victims(0, ranked);
  EXPECT_EQ(ranked.size(), 2u);
  policy->on_insert({0, 1});
  policy->rank_victims(0, ranked);
  EXPECT_EQ(ranked.size(), 3u);
}

TEST_P(PolicyContract, CountersCount) {
  auto policy = make();
  Driver driver(*policy, 3);
  for (int i = 0; i < 100; ++i) driver.play(10);
  const PolicyCounters counters = policy->counters();
  EXPECT_EQ(counters.events, 100u);
  EXPECT_EQ(counters.accesses, 300u);
  EXPECT_EQ(counters.insertions, driver.inserted_);
  EXPECT_EQ(counters.evictions, driver.evicted_);
  EXPECT_GT(counters.evictions, 0u);
}

TEST_P(PolicyContract, PredictionsAreAHint) {
  auto policy = make();
  policy->on_insert({0, 1});
  const std::vector<std::pair<ExpertKey, float>> hints = {{{0, 1}, 0.9f}, {{4, 3}, 0.1f}};
  policy->on_prediction(hints);
  std::vector<ExpertKey> ranked;
  policy->rank_victims(0, ranked);
  EXPECT_EQ(ranked, (std::vector<ExpertKey>{{0, 1}}));
}

TEST_P(PolicyContract, LayersBeyondTheContextAreAccepted) {
  auto policy = make_policy(GetParam(), {0, nullptr, 0, &nothing_});
  policy->on_insert({40, 100});
  policy->on_insert({2, 1});
  std::vector<ExpertKey> ranked;
  policy->rank_victims(40, ranked);
  EXPECT_EQ(ranked.size(), 2u);
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> out;
  for (const PolicyInfo& info : replay_policies()) out.push_back(info.name);
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, PolicyContract, ::testing::ValuesIn(names()),
                         [](const auto& info) { return ef::testing::test_name(info.param); });

TEST(Policies, TheTableNamesEachOnceAndMakersAgree) {
  std::set<std::string_view> seen;
  for (const PolicyInfo& info : policies()) {
    EXPECT_TRUE(seen.insert(info.name).second) << info.name;
    EXPECT_EQ(info.make({4, nullptr, 0})->name(), info.name);
    EXPECT_FALSE(info.summary.empty());
  }
  for (const char* name : {"next-use", "lru", "lfu", "lfru", "least-stale", "lru-high-low", "arc", "s3-fifo"})
    EXPECT_TRUE(seen.count(name)) << name;
}

TEST(Policies, WhatNeedsTheFutureIsForReplays) {
  EXPECT_EQ(replay_policies().size(), policies().size() + 1);
  EXPECT_EQ(replay_policies().back().name, "belady");
  try {
    make_policy("belady", {4, nullptr, 0});
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(),
                 "eviction policy 'belady': knows the future, which a replay alone has; known are next-use, lru, lfu, "
                 "lfru, least-stale, lru-high-low, arc, s3-fifo");
  }
}

TEST(Policies, AnUnknownNameListsTheKnown) {
  try {
    make_policy("fifo", {4, nullptr, 0});
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(),
                 "eviction policy 'fifo': unknown; known are next-use, lru, lfu, lfru, "
                 "least-stale, lru-high-low, arc, s3-fifo");
  }
}

}  // namespace
}  // namespace ef
