// What is predicted for a layer to come stays while there is anything else to give away, whatever the policy; what the
// step in flight uses stays longer, and a demand is served even if everything is predicted.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "expertflow/cache/expert_cache.h"
#include "tests/support/test_name.h"

namespace ef {
namespace {

using Likely = std::vector<std::pair<ExpertKey, float>>;

// Three layers of slots of one size, room for four; experts 0 to 3 of layer 1 are resident, 0 the oldest.
class PredictedResidents : public ::testing::TestWithParam<std::string_view> {
 protected:
  PredictedResidents() { start(); }
  void start() {
    CacheGeometry geometry{{{8, 64}, {8, 64}, {8, 64}}, 64};
    cache = std::make_unique<ExpertCache>(geometry, make_policy(GetParam(), {3, nullptr, 0}),
                                          std::as_writable_bytes(std::span(memory)));
    for (ExpertId e = 0; e < 4; ++e) use(1, {e});
  }
  // An event, its copies there at once; how many of its experts got a slot.
  size_t open(StepId step, LayerId layer, std::vector<ExpertId> experts) {
    const std::vector<int32_t> tokens(experts.size(), 1);
    std::vector<ExpertCache::Grant> granted;
    std::vector<ExpertId> deferred;
    cache->open({step, layer, experts, tokens}, granted, deferred);
    for (const auto& grant : granted)
      if (grant.fill) cache->complete({layer, grant.expert});
    for (const auto& grant : granted) cache->release(step, {layer, grant.expert});
    return granted.size();
  }
  size_t use(LayerId layer, std::vector<ExpertId> experts) {
    const StepId step = cache->begin_step();
    const size_t granted = open(step, layer, std::move(experts));
    cache->end_step(step);
    return granted;
  }
  bool resident(LayerId layer, ExpertId e) { return cache->look({layer, e}).state == ExpertState::kResident; }

  struct alignas(64) Slot {
    std::byte bytes[64];
  };
  std::array<Slot, 4> memory{};
  std::unique_ptr<ExpertCache> cache;
};

TEST_P(PredictedResidents, StayWhileAnythingElseCanGo) {
  for (ExpertId e = 0; e < 4; ++e) {
    start();
    cache->predict(Likely{{{1, e}, 0.5f}});
    use(0, {4, 5, 6});
    EXPECT_TRUE(resident(1, e)) << e;
    EXPECT_EQ(cache->stats().residents, 4u);
  }
}

TEST_P(PredictedResidents, AreServedFromWhereAllArePredicted) {
  cache->predict(Likely{{{1, 0}, 0.9f}, {{1, 1}, 0.9f}, {{1, 2}, 0.9f}, {{1, 3}, 0.9f}});
  EXPECT_FALSE(cache->reserve({2, 0}, 0)) << "no guess is worth another one";
  EXPECT_EQ(use(0, {4, 5}), 2u);
  EXPECT_EQ(resident(1, 0) + resident(1, 1) + resident(1, 2) + resident(1, 3), 2);
}

TEST_P(PredictedResidents, GoBeforeWhatTheStepInFlightUses) {
  const StepId step = cache->begin_step();
  open(step, 1, {0, 1});
  cache->predict(Likely{{{1, 2}, 0.9f}, {{1, 3}, 0.9f}});
  open(step, 0, {4, 5});
  EXPECT_TRUE(resident(1, 0) && resident(1, 1));
  EXPECT_FALSE(resident(1, 2) || resident(1, 3));
  cache->end_step(step);
}

TEST_P(PredictedResidents, HoldUntilTheLayersEventOrTheNextWordAboutIt) {
  cache->predict(Likely{{{1, 0}, 0.9f}});
  use(1, {1});
  cache->predict(Likely{{{1, 2}, 0.9f}});
  cache->predict(Likely{{{1, 3}, 0.9f}, {{1, 1}, 0.1f}});
  use(0, {4, 5, 6});
  EXPECT_TRUE(resident(1, 3));
  EXPECT_FALSE(resident(1, 0) || resident(1, 1) || resident(1, 2));
}

std::vector<std::string_view> policy_names() {
  std::vector<std::string_view> names;
  for (const PolicyInfo& info : policies()) names.push_back(info.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, PredictedResidents, ::testing::ValuesIn(policy_names()),
                         [](const auto& info) { return ef::testing::test_name(info.param); });

}  // namespace
}  // namespace ef
