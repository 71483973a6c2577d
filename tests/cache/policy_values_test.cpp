// Victim orders computed by hand.
#include <gtest/gtest.h>

#include <algorithm>

#include "expertflow/cache/access_counts.h"
#include "expertflow/cache/clairvoyant.h"

namespace ef {
namespace {

using Keys = std::vector<ExpertKey>;

class Policy {
 public:
  Policy(std::string_view name, int layers) : policy_(make_policy(name, {layers, nullptr, 0})) {}
  void access(uint64_t step, LayerId layer, std::vector<ExpertId> experts, int32_t rows = 1) {
    const std::vector<int32_t> tokens(experts.size(), rows);
    policy_->on_access({step, layer, experts, tokens});
  }
  void insert(LayerId layer, std::vector<ExpertId> experts) {
    for (const ExpertId e : experts) policy_->on_insert({layer, e});
  }
  Keys ranked(LayerId current) {
    Keys out;
    policy_->rank_victims(current, out);
    return out;
  }
  EvictionPolicy* operator->() { return policy_.get(); }

 private:
  std::unique_ptr<EvictionPolicy> policy_;
};

TEST(Lru, OldestEventFirstKeysBreakTies) {
  Policy lru("lru", 2);
  lru.access(0, 0, {3, 1});
  lru.insert(0, {3, 1});
  lru.access(0, 1, {2});
  lru.insert(1, {2});
  EXPECT_EQ(lru.ranked(1), (Keys{{0, 1}, {0, 3}, {1, 2}}));
  lru.access(1, 0, {1});
  EXPECT_EQ(lru.ranked(0), (Keys{{0, 3}, {1, 2}, {0, 1}}));
}

TEST(Lru, APrefetchedExpertIsAsFreshAsTheLatestEvent) {
  Policy lru("lru", 3);
  lru.access(0, 0, {0});
  lru.insert(0, {0});
  lru.access(0, 1, {0});
  lru.insert(1, {0});
  lru.insert(2, {5});  // nobody asked yet
  EXPECT_EQ(lru.ranked(1), (Keys{{0, 0}, {1, 0}, {2, 5}}));
}

TEST(Lfu, OfEqualCountsTheOneAskedForLessInAllGoesFirst) {
  Policy lfu("lfu", 1);
  AccessCounts counts({4});
  lfu->use_counts(counts);
  lfu.insert(0, {1, 2});
  const std::vector<ExpertId> both = {1, 2}, second = {2};
  const std::vector<int32_t> one = {1, 1};
  // 2 was asked for by an earlier event that has been forgotten, and is the older one now.
  counts.add({0, 0, second, std::span(one).first(1)});
  counts.add({1, 0, both, one});
  lfu.access(1, 0, {2}), lfu.access(1, 0, {1});
  EXPECT_EQ(lfu.ranked(0), (Keys{{0, 1}, {0, 2}}));
}

// A router whose near miss is the next one's choice. 5 and 6 were asked for once, 6 later; then 5 is nearly chosen.
TEST(NextUse, NearMissesOfTheRouterCount) {
  const auto ranked = [](bool told) {
    Policy policy("next-use", 1);
    policy.insert(0, {5, 6});
    policy.access(0, 0, {5});
    policy.access(1, 0, {6});
    for (uint64_t step = 2; step < 600; ++step) {
      const auto chosen = ExpertId(1 + step % 4), near = ExpertId(1 + (step + 1) % 4);
      const std::vector<std::pair<ExpertId, float>> probable = {{chosen, 0.6f}, {near, 0.4f}};
      if (told) policy->on_scores(0, probable);
      policy.access(step, 0, {chosen});
    }
    const std::vector<std::pair<ExpertId, float>> last = {{0, 0.6f}, {5, 0.4f}};
    if (told) policy->on_scores(0, last);
    policy.access(600, 0, {0});
    return policy.ranked(0);
  };
  EXPECT_EQ(ranked(true), (Keys{{0, 6}, {0, 5}}));
  EXPECT_EQ(ranked(false), (Keys{{0, 5}, {0, 6}}));
}

TEST(Lfu, RareOnesFirstThenOlderOnes) {
  Policy lfu("lfu", 1);
  lfu.insert(0, {0, 1, 2, 3});
  lfu.access(0, 0, {0, 1});
  lfu.access(1, 0, {0, 2});
  lfu.access(2, 0, {0, 1});
  // counts: 0 -> 3, 1 -> 2, 2 -> 1, 3 -> 0
  EXPECT_EQ(lfu.ranked(0), (Keys{{0, 3}, {0, 2}, {0, 1}, {0, 0}}));
  lfu.access(3, 0, {2});
  // 1 and 2 both have 2; expert 1 is older
  EXPECT_EQ(lfu.ranked(0), (Keys{{0, 3}, {0, 1}, {0, 2}, {0, 0}}));
}

TEST(Lfu, CountsAreHalvedEvery128Steps) {
  Policy lfu("lfu", 1);
  lfu.insert(0, {0, 1});
  for (uint64_t step = 0; step < 6; ++step) lfu.access(step, 0, {0});  // expert 0: 6
  lfu.access(126, 0, {1});
  lfu.access(127, 0, {1});  // expert 1: 2
  EXPECT_EQ(lfu.ranked(0).front(), (ExpertKey{0, 1}));
  // In the second period expert 0 counts 3, expert 1 counts 1 + 3 = 4.
  for (uint64_t step = 128; step < 131; ++step) lfu.access(step, 0, {1});
  EXPECT_EQ(lfu.ranked(0).front(), (ExpertKey{0, 0}));
}

TEST(Lfu, FrequencyOutlivesResidency) {
  Policy lfu("lfu", 1);
  lfu.access(0, 0, {0});
  lfu.access(1, 0, {0});
  lfu.access(2, 0, {1});
  lfu.insert(0, {0, 1});
  lfu->on_evict({0, 0});
  lfu->on_insert({0, 0});
  EXPECT_EQ(lfu.ranked(0), (Keys{{0, 1}, {0, 0}}));
}

TEST(Lfu, AnEventCountsOnceHoweverManyRows) {
  Policy lfu("lfu", 1);
  lfu.insert(0, {0, 1});
  lfu.access(0, 0, {0}, 500);
  lfu.access(1, 0, {1});
  lfu.access(2, 0, {1});
  EXPECT_EQ(lfu.ranked(0), (Keys{{0, 0}, {0, 1}}));
}

TEST(Lfru, FrequencyOverAge) {
  Policy lfru("lfru", 1);
  lfru.insert(0, {0, 1, 2});
  // expert 0: 4 accesses then absent for 3 passes: about 4/4 = 1. expert 1: 2 accesses, age 0: 2. expert 2: 1, age 2:
  // 1/3.
  for (uint64_t step = 0; step < 4; ++step) lfru.access(step, 0, {0});
  lfru.access(4, 0, {2});
  lfru.access(5, 0, {1});
  lfru.access(6, 0, {1});
  EXPECT_EQ(lfru.ranked(0), (Keys{{0, 2}, {0, 0}, {0, 1}}));
  // Three more passes of expert 2 (4 - 1): f = 4, age 0; expert 1: 2 / 4; expert 0: 4 / 7 > 0.5.
  for (uint64_t step = 7; step < 10; ++step) lfru.access(step, 0, {2});
  EXPECT_EQ(lfru.ranked(0), (Keys{{0, 1}, {0, 0}, {0, 2}}));
}

TEST(Lfru, AgeCountsPassesOfTheOwnLayer) {
  Policy lfru("lfru", 3);
  lfru.access(0, 0, {0});
  lfru.insert(0, {0});
  lfru.access(0, 1, {0});
  lfru.insert(1, {0});
  lfru.access(0, 2, {0});
  lfru.insert(2, {0});
  // All have f = 1 and age 0, though layer 0 ran longest ago. At layer 2, layer 2 comes around latest, then 1, then 0.
  EXPECT_EQ(lfru.ranked(2), (Keys{{2, 0}, {1, 0}, {0, 0}}));
  lfru.access(1, 0, {1});  // layer 0 passed without expert 0: 1/2
  EXPECT_EQ(lfru.ranked(0).front(), (ExpertKey{0, 0}));
}

TEST(Lfru, FrequencyHalvesIn128Steps) {
  Policy lfru("lfru", 2);
  lfru.insert(0, {0});
  lfru.insert(1, {0, 1});
  for (int i = 0; i < 3; ++i) lfru.access(0, 0, {0});  // f = 3
  for (int i = 0; i < 2; ++i) lfru.access(128, 1, {0, 1});
  // At step 128: (0,0) has 1.5, (1,x) have 2, all of age 0.
  EXPECT_EQ(lfru.ranked(1), (Keys{{0, 0}, {1, 0}, {1, 1}}));
}

TEST(LeastStale, StaleOnesFirstThenPassedLayers) {
  Policy stale("least-stale", 4);
  for (LayerId layer = 0; layer < 4; ++layer) {
    stale.access(0, layer, {0, 1});
    stale.insert(layer, {0, 1});
  }
  stale.access(1, 0, {0});
  stale.access(1, 1, {1});
  // Step 1 has passed layers 0 and 1. Unwanted there: (0,1) since event 1, (1,0) since event 2. Of the fresh ones,
  // layer 1 comes around in 4 events, layer 0 in 3, layer 3 in 2, layer 2 next.
  EXPECT_EQ(stale.ranked(1), (Keys{{0, 1}, {1, 0}, {1, 1}, {0, 0}, {3, 0}, {3, 1}, {2, 0}, {2, 1}}));
}

TEST(LeastStale, ACycleLargerThanTheCacheStillHits) {
  // 4 layers, one expert each, room for 3: plain LRU never hits; dropping what was passed last keeps two of four.
  const auto hits = [](std::string_view name) {
    Policy policy(name, 4);
    Keys resident;
    int hits = 0;
    for (uint64_t step = 0; step < 10; ++step) {
      for (LayerId layer = 0; layer < 4; ++layer) {
        policy.access(step, layer, {0});
        if (std::find(resident.begin(), resident.end(), ExpertKey{layer, 0}) != resident.end()) {
          ++hits;
          continue;
        }
        if (resident.size() == 3) {
          const ExpertKey victim = policy.ranked(layer).front();
          policy->on_evict(victim);
          std::erase(resident, victim);
        }
        policy.insert(layer, {0});
        resident.push_back({layer, 0});
      }
    }
    return hits;
  };
  EXPECT_EQ(hits("lru"), 0);
  // Belady on this trace: 4 cold misses, then every third access misses.
  EXPECT_EQ(hits("least-stale"), 24);
}

TEST(NextUse, RareOnesFirst) {
  Policy policy("next-use", 1);
  policy.insert(0, {0, 1, 2});
  for (uint64_t step = 0; step < 60; ++step) {
    std::vector<ExpertId> wanted = {0};
    if (step % 2 == 0) wanted.push_back(1);
    if (step % 10 == 0) wanted.push_back(2);
    policy.access(step, 0, wanted);
  }
  EXPECT_EQ(policy.ranked(0), (Keys{{0, 2}, {0, 1}, {0, 0}}));
}

TEST(NextUse, AmongEqualsThoseOfLayersThatComeLatest) {
  Policy policy("next-use", 3);
  for (LayerId layer = 0; layer < 3; ++layer) {
    policy.access(0, layer, {0});
    policy.insert(layer, {0});
  }
  EXPECT_EQ(policy.ranked(1), (Keys{{1, 0}, {0, 0}, {2, 0}}));
}

TEST(NextUse, LearnsThatTheLatestSaysNothing) {
  // Expert 0 comes every second token, experts 1 and 2 never twice in a row but in bursts of their own: with equal
  // weights for all averages, whoever came last would stay.
  Policy policy("next-use", 1);
  policy.insert(0, {0, 1});
  for (uint64_t step = 0; step < 400; ++step) {
    if (step % 2 == 0) {
      policy.access(step, 0, {0});
    } else {
      policy.access(step, 0, {ExpertId(1 + step % 7)});
    }
  }
  policy.access(400, 0, {0});
  policy.access(401, 0, {1});
  EXPECT_EQ(policy.ranked(0), (Keys{{0, 1}, {0, 0}}));
}

TEST(NextUse, PredictionsHoldUntilTheirLayerComes) {
  Policy policy("next-use", 2);
  for (uint64_t step = 0; step < 8; ++step) {
    policy.access(step, 0, {0});
    policy.access(step, 1, {ExpertId(step % 4)});
  }
  policy.insert(1, {0, 1, 2, 3});
  const auto front = policy.ranked(0).front();
  const std::vector<std::pair<ExpertKey, float>> likely = {{front, 0.9f}};
  policy->on_prediction(likely);
  EXPECT_EQ(policy.ranked(0).back(), front);
  policy.access(8, 0, {0});
  EXPECT_EQ(policy.ranked(0).back(), front);
  policy.access(8, 1, {front.expert == 0 ? ExpertId(1) : ExpertId(0)});
  EXPECT_NE(policy.ranked(1).back(), front);
}

TEST(NextUse, ABatchCountsByItsRows) {
  // Of 100 rows 60 chose expert 0 and 2 expert 1: one event, but not one of equals.
  auto policy = make_policy("next-use", {1, nullptr, 0});
  const std::vector<ExpertId> experts = {0, 1};
  const std::vector<int32_t> tokens = {60, 2};
  policy->on_insert({0, 1});
  policy->on_insert({0, 0});
  policy->on_access({0, 0, experts, tokens, 100});
  Keys ranked;
  policy->rank_victims(0, ranked);
  EXPECT_EQ(ranked, (Keys{{0, 1}, {0, 0}}));
}

// Two layers. After events 0 and 1: expert 1 of layer 0 comes at 2, expert 2 of layer 1 at 3, expert 0 of layer 0 at 4.
TEST(Belady, WhatIsUsedAgainLatestGoesFirst) {
  const std::vector<LayerEvent> future = {{0, {0, 1}}, {1, {2}}, {0, {1}}, {1, {2}}, {0, {0}}};
  auto policy = make_policy("belady", {2, nullptr, 0, &future});
  const auto access = [&](const LayerEvent& event) {
    const std::vector<int32_t> tokens(event.experts.size(), 1);
    policy->on_access({0, event.layer, event.experts, tokens});
  };
  for (const ExpertKey key : Keys{{0, 0}, {0, 1}, {1, 2}, {1, 3}}) policy->on_insert(key);
  Keys ranked;
  access(future[0]), access(future[1]);
  policy->rank_victims(1, ranked);
  EXPECT_EQ(ranked, (Keys{{1, 3}, {0, 0}, {1, 2}, {0, 1}}));  // nobody asks for expert 3 of layer 1
  access(future[2]);
  policy->rank_victims(0, ranked);
  EXPECT_EQ(ranked, (Keys{{0, 1}, {1, 3}, {0, 0}, {1, 2}}));  // expert 1 of layer 0 has had its last use
}

class Ticking {
 public:
  Ticking() : policy(make_policy("lru-high-low", {16, &clock, 0})) {}
  void access(LayerId layer, ExpertId expert, bool insert = true) {
    const std::vector<ExpertId> experts = {expert};
    const std::vector<int32_t> tokens = {1};
    policy->on_access({0, layer, experts, tokens});
    if (insert) policy->on_insert({layer, expert});
  }
  Keys ranked(LayerId current) {
    Keys out;
    policy->rank_victims(current, out);
    return out;
  }
  ManualClock clock;
  std::unique_ptr<EvictionPolicy> policy;
};

TEST(LruHighLow, PredictedOnesLeaveLastAndTheOthersByAge) {
  Ticking t;
  for (LayerId layer = 0; layer < 12; ++layer) t.access(layer, 0);
  EXPECT_EQ(t.ranked(11).front(), (ExpertKey{0, 0}));
  const std::vector<std::pair<ExpertKey, float>> likely = {{{0, 0}, 0.5f}};
  t.policy->on_prediction(likely);
  const Keys ranked = t.ranked(11);
  EXPECT_EQ(ranked.front(), (ExpertKey{1, 0}));
  EXPECT_EQ(ranked.back(), (ExpertKey{0, 0}));
  t.access(0, 1, false);  // the layer has come, and wanted another
  EXPECT_EQ(t.ranked(0).front(), (ExpertKey{0, 0}));
}

TEST(LruHighLow, TheHighQueueHoldsItsShareOnly) {
  // 10 residents, all of them predicted for one layer ahead: 7 are high, the longest unused 3 go first.
  Ticking t;
  std::vector<std::pair<ExpertKey, float>> likely;
  for (ExpertId e = 9; e >= 0; --e) {
    t.access(1, e);
    likely.push_back({{1, e}, 0.5f});
  }
  t.policy->on_prediction(likely);
  Keys expected;
  for (ExpertId e = 9; e >= 0; --e) expected.push_back({1, e});
  EXPECT_EQ(t.ranked(0), expected);
  // Only the oldest one predicted: it is the most protected of the high queue, though idle for longest.
  t.policy->on_prediction(std::vector<std::pair<ExpertKey, float>>{{{1, 9}, 0.5f}});
  EXPECT_EQ(t.ranked(0).back(), (ExpertKey{1, 9}));
}

TEST(Arc, OnceOnlyLeavesBeforeAgain) {
  Policy arc("arc", 1);
  for (const ExpertId e : {0, 1, 2}) {
    arc.access(uint64_t(e), 0, {e});
    arc.insert(0, {e});
  }
  arc.access(3, 0, {0});  // to T2
  EXPECT_EQ(arc.ranked(0), (Keys{{0, 1}, {0, 2}, {0, 0}}));
}

TEST(Arc, AGhostOfT1MakesT1Larger) {
  // 3 slots, T2 = {0}, T1 = {1, 2}. 1 leaves and comes back: the target becomes 1, 1 is in T2 now.
  Policy arc("arc", 1);
  for (const ExpertId e : {0, 1, 2}) {
    arc.access(uint64_t(e), 0, {e});
    arc.insert(0, {e});
  }
  arc.access(3, 0, {0});
  arc->on_evict({0, 1});
  arc.access(4, 0, {1});
  arc->on_evict({0, 2});  // had to leave for it
  arc.insert(0, {1});
  arc.access(5, 0, {3});
  arc->on_evict({0, 0});
  arc.insert(0, {3});
  // T1 = {3}, not above its target of 1: T2 = {1} goes first.
  EXPECT_EQ(arc.ranked(0), (Keys{{0, 1}, {0, 3}}));
}

TEST(S3Fifo, OneTimersLeaveAndTheOthersMove) {
  Policy s3("s3-fifo", 1);
  for (ExpertId e = 0; e < 10; ++e) {
    s3.access(uint64_t(e), 0, {e});
    s3.insert(0, {e});
  }
  s3.access(10, 0, {0, 1});  // asked for again: to main when they come to the end of the small queue
  // The small queue's target is 1 of 10: 2..8 leave, then it is within its share; main holds 0 and 1 with no uses left.
  EXPECT_EQ(s3.ranked(0), (Keys{{0, 2}, {0, 3}, {0, 4}, {0, 5}, {0, 6}, {0, 7}, {0, 8}, {0, 0}, {0, 1}, {0, 9}}));
}

TEST(S3Fifo, WhoComesBackEntersTheMainQueue) {
  Policy s3("s3-fifo", 1);
  for (ExpertId e = 0; e < 4; ++e) {
    s3.access(uint64_t(e), 0, {e});
    s3.insert(0, {e});
  }
  s3->on_evict({0, 0});
  s3.access(4, 0, {0});
  s3.insert(0, {0});
  EXPECT_EQ(s3.ranked(0), (Keys{{0, 1}, {0, 2}, {0, 3}, {0, 0}}));
}

}  // namespace
}  // namespace ef
