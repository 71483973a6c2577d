// Reading ahead is a hint: it changes no token, yields to what is asked for, keeps within its share, and what it
// brought in vain leaves first.
#include <gtest/gtest.h>

#include "expertflow/engine/cached_experts.h"
#include "expertflow/engine/generate.h"
#include "tests/engine/model_rig.h"
#include "tests/engine/tiny_experts.h"
#include "tests/support/seq_points.h"

namespace ef::testing {
namespace {

// Says what a test tells it to.
class Oracle final : public ExpertForecast {
 public:
  void forecast(LayerId layer, int64_t, Stream&, std::vector<ExpertKey>& likely) override {
    asked.push_back(layer);
    likely = says ? says(layer) : std::vector<ExpertKey>{};
  }
  std::function<std::vector<ExpertKey>(LayerId)> says;
  std::vector<LayerId> asked;
};

class ReadAhead : public ::testing::Test {
 protected:
  ReadAhead() : pool(1), backend(make_cpu_backend(pool, Isa::kReference)), stream(backend->make_stream()) {}
  void start(int slots, int workers = 1) {
    ExpertTierOptions o;
    slot_bytes = geometry_of(model.store(), model.layers()).largest_footprint();
    o.budget_bytes = uint64_t(slots) * slot_bytes;
    o.pipeline.workers = workers;
    o.pipeline.hook = [this](std::string_view point, ExpertKey key) {
      points.pass(fmt::format("{} {}.{}", point, key.layer, key.expert));
    };
    tier = std::make_unique<ExpertTier>(model.config(), model.store(), *backend, clock, o);
    tier->experts().set_forecast(&oracle);
  }
  // One row that wants these experts of a layer.
  void run(LayerId layer, std::vector<int32_t> ids) {
    const std::vector<float> x(64, 0.5f), weights(ids.size(), 0.25f);
    std::vector<float> out(64);
    tier->experts().run(layer, x.data(), {1, int(ids.size()), ids.data(), weights.data()}, out.data(), *stream);
  }
  ExpertState state(LayerId layer, ExpertId e) { return tier->cache().look({layer, e}).state; }

  static TinyShape shape() {
    TinyShape s;
    s.layers = {Format::kF32, Format::kF32, Format::kF32};
    return s;
  }
  TinyExperts model{shape()};
  ThreadPool pool;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  SteadyClock clock;
  Oracle oracle;
  SeqPoints points;
  std::unique_ptr<ExpertTier> tier;
  uint64_t slot_bytes = 0;
};

TEST_F(ReadAhead, ARightGuessIsThereInTime) {
  start(40);
  oracle.says = [](LayerId layer) { return std::vector<ExpertKey>{{layer + 1, 3}, {layer + 1, 5}}; };
  tier->experts().begin_step();
  run(1, {0, 1, 2, 4});
  tier->pipeline().drain();
  EXPECT_EQ(state(2, 3), ExpertState::kResident);
  oracle.says = {};
  run(2, {3, 5, 6, 7});
  tier->experts().end_step();
  const CacheStats stats = tier->cache().stats();
  EXPECT_EQ(stats.reserved, 2u);
  EXPECT_EQ(stats.reserved_used, 2u);
  EXPECT_EQ(stats.reserved_late, 0u);
  EXPECT_EQ(stats.reserved_wasted, 0u);
  EXPECT_EQ(stats.misses, 4u + 2u);
  EXPECT_EQ(stats.hits, 2u);
  EXPECT_EQ(tier->cache().reserved_bytes(), 0u);
}

// The reader is held: guesses wait in the queue behind what is asked for, and are taken back when they are wrong.
TEST_F(ReadAhead, GuessesWaitBehindDemandsAndAreCancelledWhenWrong) {
  start(40);
  oracle.says = [&](LayerId layer) {
    if (layer == 2) points.let_go("start 2.3");  // layer 2 has asked for its experts by now
    return layer == 1 ? std::vector<ExpertKey>{{2, 3}, {2, 5}, {3, 9}} : std::vector<ExpertKey>{};
  };
  tier->experts().begin_step();
  points.hold("start 2.3");
  run(1, {0, 1, 2, 4});
  points.wait_for("start 2.3");  // layer 1 is served; one guess is under way, two are queued
  run(2, {6, 7, 8, 3});
  tier->pipeline().drain();
  tier->experts().end_step();
  const auto starts = points.log("start 2.");
  EXPECT_EQ(std::count(starts.begin(), starts.end(), "start 2.5"), 0) << "cancelled before it was read";
  EXPECT_EQ(state(2, 5), ExpertState::kAbsent);
  EXPECT_EQ(state(3, 9), ExpertState::kResident) << "another layer's guess stays";
  const auto all = points.log("start ");
  EXPECT_EQ(all.back(), "start 3.9") << "behind the demands";
  const CacheStats stats = tier->cache().stats();
  EXPECT_EQ(stats.reserved, 3u);
  EXPECT_EQ(stats.reserved_used, 1u);
  EXPECT_EQ(tier->pipeline().stats().cancelled, 1u);
}

TEST_F(ReadAhead, WhatWasNotWantedLeavesFirst) {
  start(8);
  oracle.says = [](LayerId layer) { return layer == 1 ? std::vector<ExpertKey>{{2, 15}} : std::vector<ExpertKey>{}; };
  tier->experts().begin_step();
  run(1, {0, 1, 2, 3});
  tier->pipeline().drain();
  ASSERT_EQ(state(2, 15), ExpertState::kResident);
  run(2, {0, 1, 2, 3});  // 8 slots: 4 + 1 + 3, so one must go
  tier->experts().end_step();
  EXPECT_EQ(state(2, 15), ExpertState::kAbsent);
  for (ExpertId e = 0; e < 4; ++e) EXPECT_EQ(state(1, e), ExpertState::kResident) << e;
  EXPECT_EQ(tier->cache().stats().reserved_wasted, 1u);
}

TEST_F(ReadAhead, TheShareOfThePoolIsKept) {
  start(12);
  oracle.says = [](LayerId layer) {
    std::vector<ExpertKey> all;
    for (ExpertId e = 0; e < 16; ++e) all.push_back({layer + 1, e});
    return layer < 3 ? all : std::vector<ExpertKey>{};
  };
  tier->experts().begin_step();
  run(1, {0, 1, 2, 3});
  EXPECT_EQ(tier->cache().stats().reserved, 3u) << "a quarter of 12 slots";
  EXPECT_EQ(tier->cache().reserved_bytes(), 3 * slot_bytes);
  tier->experts().end_step();
}

TEST_F(ReadAhead, NothingOfTheStepInFlightIsEvicted) {
  start(4);
  oracle.says = [](LayerId layer) { return std::vector<ExpertKey>{{layer + 1, 9}}; };
  tier->experts().begin_step();
  run(1, {0, 1, 2, 3});  // the whole pool, all of the open step
  tier->pipeline().drain();
  EXPECT_EQ(tier->cache().stats().reserved, 0u);
  for (ExpertId e = 0; e < 4; ++e) EXPECT_EQ(state(1, e), ExpertState::kResident);
  tier->experts().end_step();
}

TEST_F(ReadAhead, PromptsAreNotGuessedAbout) {
  start(40);
  std::mt19937 random(1);
  const RoutedRows rows(model.shape(), 9, random);
  std::vector<float> out(size_t(rows.rows) * 64);
  tier->experts().run(1, rows.x.data(), rows.view(), out.data(), *stream);
  EXPECT_TRUE(oracle.asked.empty());
}

// The plain rule on whole models: the same tokens at every distance and budget, and guesses that are right more often
// than chance.
TEST(GateAheadRule, SameTokensAndGoodGuesses) {
  for (const char* name : {"mixtral", "olmoe", "deepseek_v3", "qwen3_moe-mixed-layers", "gpt_oss"}) {
    const GoldenCase golden = goldens(name)[1];
    for (const char* budget : {"min", "50%"})
      for (const int distance : {0, 1, 2}) {
        EngineOptions o = small_engine(budget);
        o.read_ahead = distance;
        const auto engine = engine_of(name, o);
        GenerateRequest r;
        r.prompt = golden.ids;
        r.max_tokens = 24;
        r.sampler.temperature = 0;
        EXPECT_EQ(Generator(*engine, nullptr).generate(r).tokens, golden.greedy) << name << budget << distance;
        const ExpertStats stats = engine->expert_stats();
        if (distance == 0 || std::string(budget) == "min")
          EXPECT_EQ(stats.ahead, 0u);
        else
          EXPECT_GE(stats.ahead, stats.ahead_used + stats.ahead_wasted);
      }
  }
}

}  // namespace
}  // namespace ef::testing
