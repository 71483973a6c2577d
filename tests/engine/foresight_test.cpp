// Looking ahead is a hint: it changes no token, yields to what is asked for, keeps within its share, and what it
// brought in vain leaves first.
#include "expertflow/engine/foresight.h"

#include <gtest/gtest.h>

#include <atomic>

#include "expertflow/engine/generate.h"
#include "tests/engine/model_rig.h"
#include "tests/engine/tiny_experts.h"
#include "tests/support/seq_points.h"

namespace ef::testing {
namespace {

// Moves when told, by several threads.
class SharedClock final : public Clock {
 public:
  Duration now() const override { return Duration(now_.load()); }
  void advance(Duration by) { now_ += by.count(); }

 private:
  std::atomic<int64_t> now_{0};
};

// Says what a test tells it to: experts of a layer, all equally likely.
class Oracle final : public Predictor {
 public:
  explicit Oracle(const Config& config) : config_(config) {}
  std::string_view name() const override { return "oracle"; }
  bool covers(StepPoint point, LayerId layer, LayerId target) const override {
    return point == StepPoint::kRouted && target > layer && config_.layers[size_t(target)].sparse;
  }
  PredictorCost cost(StepPoint, LayerId, LayerId) const override { return {}; }
  uint64_t parameters() const override { return 0; }
  void queue(const StepView& view, LayerId first, LayerId, Stream&) override {
    asked.emplace_back(view.layer, first);
    if (when_asked) when_asked(view.layer);
  }
  void finish(LayerId target, float* probabilities) override {
    std::fill_n(probabilities, config_.router.experts, 0.f);
    if (says)
      for (const ExpertId e : says(target)) probabilities[e] = 0.9f;
  }
  std::function<std::vector<ExpertId>(LayerId)> says;
  std::function<void(LayerId)> when_asked;
  std::vector<std::pair<LayerId, LayerId>> asked;

 private:
  const Config& config_;
};

// Has waited as long as a test says.
class WaitingExperts final : public CachedExperts {
 public:
  void begin_step() override {}
  void end_step() override {}
  void run(LayerId, const float*, const RoutingView&, const ExpertsOut&, Stream&) override {}
  CachedExpertsStats stats() const override {
    CachedExpertsStats all;
    all.stall_seconds = waited;
    return all;
  }
  ExpertUse use() const override { return {}; }
  void set_ahead(ExpertsAhead*) override {}
  double waited = 0;
};

class ForesightTest : public ::testing::Test {
 protected:
  ForesightTest()
      : pool(1),
        backend(make_cpu_backend(pool, Isa::kReference)),
        stream(backend->make_stream()),
        oracle(model.config()) {}

  void start(int slots, int workers = 1, int horizon = 1) {
    ExpertTierOptions o;
    slot_bytes = geometry_of(model.store(), model.layers()).largest_footprint();
    o.budget_bytes = uint64_t(slots) * slot_bytes;
    o.pipeline.workers = workers;
    o.pipeline.hook = [this](std::string_view point, ExpertKey key) {
      if (point == "start") clock.advance(std::chrono::milliseconds(1));
      points.pass(fmt::format("{} {}.{}", point, key.layer, key.expert));
    };
    tier = std::make_unique<ExpertTier>(model.config(), model.store(), *backend, clock, o);
    state = std::make_unique<State>(model.config(), *backend, 32, 1);
    ForesightOptions f;
    f.horizon = horizon;
    f.controller.renew_tokens = 1;
    f.candidates.all.most = 16;
    f.candidates.all.least_probability = 0.5f;
    f.governor.mode = PrefetchMode::kOn;
    f.governor.pool_bytes = tier->cache().pool_bytes();
    foresight = std::make_unique<Foresight>(model.config(), *state, oracle, *stream, tier->cache(), tier->pipeline(),
                                            tier->experts(), clock, f);
    tier->experts().set_ahead(foresight.get());
    measure_link();
    before = tier->cache().stats();
  }
  // A step that shows the governor what the link delivers and how long it is idle; then the cache is empty again.
  void measure_link() {
    begin_step();
    run(1, {0});
    tier->pipeline().drain();  // the copy's end is noted before the clock moves on
    run(2, {0});
    end_step();
    tier->cache().evict_all();
    oracle.asked.clear();
  }
  void begin_step() {
    static constexpr TokenId kToken = 1;
    static constexpr int32_t kZero = 0;
    foresight->on_step({&kToken, 1}, {&kZero, 1}, {&kZero, 1});
    tier->experts().begin_step();
  }
  void end_step() {
    tier->experts().end_step();
    foresight->end_step(false);
  }
  // One row that wants these experts of a layer; a second later.
  void run(LayerId layer, std::vector<int32_t> ids) {
    clock.advance(std::chrono::seconds(1));
    const std::vector<float> x(64, 0.5f), weights(ids.size(), 0.25f);
    std::vector<float> out(64);
    tier->experts().run(layer, x.data(), {1, int(ids.size()), ids.data(), weights.data()}, out.data(), *stream);
  }
  ExpertState at(LayerId layer, ExpertId e) { return tier->cache().look({layer, e}).state; }

  static TinyShape shape() {
    TinyShape s;
    s.layers = {Format::kF32, Format::kF32, Format::kF32};
    return s;
  }
  TinyExperts model{shape()};
  ThreadPool pool;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  SharedClock clock;
  Oracle oracle;
  SeqPoints points;
  std::unique_ptr<ExpertTier> tier;
  std::unique_ptr<State> state;
  std::unique_ptr<Foresight> foresight;
  uint64_t slot_bytes = 0;
  CacheStats before;
};

TEST_F(ForesightTest, ARightGuessIsThereInTime) {
  start(40);
  oracle.says = [](LayerId target) { return target == 2 ? std::vector<ExpertId>{3, 5} : std::vector<ExpertId>{}; };
  begin_step();
  run(1, {0, 1, 2, 4});
  tier->pipeline().drain();
  EXPECT_EQ(at(2, 3), ExpertState::kResident);
  run(2, {3, 5, 6, 7});
  end_step();
  const CacheStats stats = tier->cache().stats();
  EXPECT_EQ(stats.reserved, 2u);
  EXPECT_EQ(stats.reserved_used, 2u);
  EXPECT_EQ(stats.reserved_late, 0u);
  EXPECT_EQ(stats.reserved_wasted, 0u);
  EXPECT_EQ(stats.hits - before.hits, 2u);
  EXPECT_EQ(tier->cache().reserved_bytes(), 0u);
  // Two of four routed experts were predicted and resident.
  const ForesightStats f = foresight->stats();
  EXPECT_EQ(f.by_distance.size(), 1u);
  EXPECT_EQ(f.governor.used, 2u);
  const PredictionCounts& p = f.prediction;
  EXPECT_EQ(p.named, 2u);
  EXPECT_EQ(p.ready, 2u);
  EXPECT_DOUBLE_EQ(p.fetch_rate(), 1);
}

// The reader is held: guesses wait in the queue behind what is asked for, and are taken back when they are wrong.
TEST_F(ForesightTest, GuessesWaitBehindDemandsAndAreCancelledWhenWrong) {
  start(40, 1, 2);
  oracle.says = [&](LayerId target) {
    return target == 2 ? std::vector<ExpertId>{3, 5} : target == 3 ? std::vector<ExpertId>{9} : std::vector<ExpertId>{};
  };
  begin_step();
  points.hold("start 2.3");
  run(1, {0, 1, 2, 4});
  points.wait_for("start 2.3");  // layer 1 is served; one guess is under way, two are queued
  oracle.when_asked = [&](LayerId layer) {
    if (layer == 2) points.let_go("start 2.3");  // layer 2 has asked for its experts by now
  };
  run(2, {6, 7, 8, 3});
  tier->pipeline().drain();
  end_step();
  const auto starts = points.log("start 2.5");
  EXPECT_TRUE(starts.empty()) << "cancelled before it was read";
  EXPECT_EQ(at(2, 5), ExpertState::kAbsent);
  EXPECT_EQ(at(3, 9), ExpertState::kResident) << "another layer's guess stays";
  EXPECT_EQ(points.log("start ").back(), "start 3.9") << "behind the demands";
  EXPECT_EQ(tier->pipeline().stats().cancelled, 1u);
}

TEST_F(ForesightTest, WhatWasNotWantedLeavesFirst) {
  start(8);
  oracle.says = [](LayerId target) { return target == 2 ? std::vector<ExpertId>{15} : std::vector<ExpertId>{}; };
  begin_step();
  run(1, {0, 1, 2, 3});
  tier->pipeline().drain();
  ASSERT_EQ(at(2, 15), ExpertState::kResident);
  run(2, {0, 1, 2, 3});  // 8 slots: 4 + 1 + 3, so one must go
  end_step();
  EXPECT_EQ(at(2, 15), ExpertState::kAbsent);
  for (ExpertId e = 0; e < 4; ++e) EXPECT_EQ(at(1, e), ExpertState::kResident) << e;
  const CacheStats stats = tier->cache().stats();
  EXPECT_EQ(stats.reserved_wasted, 1u);
  EXPECT_EQ(stats.reserved_evicted, 1u) << "never used";
  EXPECT_EQ(stats.reserved_evicted_bytes, tier->cache().geometry().layers[2].slot_bytes);
  EXPECT_EQ(foresight->stats().governor.unused, 1u);
}

TEST_F(ForesightTest, TheShareOfThePoolIsKept) {
  start(12);
  oracle.says = [](LayerId) {
    std::vector<ExpertId> all;
    for (ExpertId e = 0; e < 16; ++e) all.push_back(e);
    return all;
  };
  begin_step();
  run(1, {0, 1, 2, 3});
  EXPECT_EQ(tier->cache().stats().reserved, 3u) << "a quarter of 12 slots";
  EXPECT_EQ(tier->cache().reserved_bytes(), 3 * slot_bytes);
  end_step();
}

TEST_F(ForesightTest, NothingOfTheStepInFlightIsEvicted) {
  start(4);
  oracle.says = [](LayerId) { return std::vector<ExpertId>{9}; };
  begin_step();
  run(1, {0, 1, 2, 3});  // the whole pool, all of the open step
  tier->pipeline().drain();
  EXPECT_EQ(tier->cache().stats().reserved, 0u);
  EXPECT_EQ(foresight->stats().governor.issued, 0u);
  for (ExpertId e = 0; e < 4; ++e) EXPECT_EQ(at(1, e), ExpertState::kResident);
  end_step();
}

TEST_F(ForesightTest, PromptsAreNotGuessedAbout) {
  start(40);
  std::mt19937 random(1);
  const RoutedRows rows(model.shape(), 32, random);
  const std::vector<TokenId> tokens(32, 1);
  const std::vector<int32_t> zeros(32, 0);
  std::vector<float> out(size_t(rows.rows) * 64);
  foresight->on_step(tokens, zeros, zeros);
  tier->experts().begin_step();
  tier->experts().run(1, rows.x.data(), rows.view(), out.data(), *stream);
  end_step();
  EXPECT_TRUE(oracle.asked.empty());
}

TEST_F(ForesightTest, AStepThatFailsIsNotJudged) {
  start(40);
  oracle.says = [](LayerId) { return std::vector<ExpertId>{9}; };
  begin_step();
  run(1, {0, 1, 2, 3});
  tier->experts().end_step();
  foresight->end_step(true);
  EXPECT_EQ(foresight->stats().governor.unused, 0u);
  begin_step();
  run(1, {0, 1, 2, 3});
  end_step();
  EXPECT_EQ(foresight->stats().governor.steps_on, 2u) << "the first, which measured the link, and this";
}

// Looked two layers ahead for, where the formula says one: all there while layer 1 runs, and so a layer too early.
TEST_F(ForesightTest, CopiesThatComeFarTooEarlyLowerTheDistance) {
  start(40, 1, 2);
  oracle.says = [](LayerId target) { return target == 3 ? std::vector<ExpertId>{3, 5, 6} : std::vector<ExpertId>{}; };
  ASSERT_EQ(foresight->stats().controller.formula, 1);
  begin_step();
  run(1, {0});
  tier->pipeline().drain();
  run(2, {0});
  run(3, {3, 5, 6});
  end_step();
  EXPECT_EQ(foresight->stats().governor.used, 3u);
  EXPECT_EQ(foresight->stats().controller.overfetches, 3u);
  EXPECT_EQ(foresight->stats().controller.offset, -1);
}

// The last of them comes while layer 2 runs: one layer before its own.
TEST_F(ForesightTest, AnEventsLastCopyDecidesWhetherAllWereTooEarly) {
  start(40, 2, 2);
  oracle.says = [](LayerId target) { return target == 3 ? std::vector<ExpertId>{3, 5, 6} : std::vector<ExpertId>{}; };
  begin_step();
  points.hold("start 3.6");
  run(1, {0});
  points.wait_for("start 3.6");
  run(2, {0});
  points.let_go("start 3.6");
  tier->pipeline().drain();
  run(3, {3, 5, 6});
  end_step();
  EXPECT_EQ(foresight->stats().governor.used, 3u);
  EXPECT_EQ(foresight->stats().controller.overfetches, 0u);
}

TEST_F(ForesightTest, WaitingRaisesTheDistance) {
  start(40);
  WaitingExperts waiting;
  ForesightOptions f;
  f.controller.stall_threshold = 2;
  f.governor.mode = PrefetchMode::kOff;
  Foresight adaptive(model.config(), *state, oracle, *stream, tier->cache(), tier->pipeline(), waiting, clock, f);
  const TokenId token = 1;
  const int32_t zero = 0;
  const ExpertId wanted = 0;
  adaptive.on_step({&token, 1}, {&zero, 1}, {&zero, 1});
  for (LayerId layer = 1; layer <= 3; ++layer) {
    adaptive.on_event(layer, {&wanted, 1});
    waiting.waited += 0.25;
  }
  ASSERT_EQ(adaptive.stats().horizon, 1);
  adaptive.end_step(false);
  EXPECT_EQ(adaptive.stats().controller.stalls, 2u) << "of layers 1 and 2";
  EXPECT_EQ(adaptive.stats().horizon, 2);
  EXPECT_EQ(adaptive.stats().controller.changes.back().reason, "compute waited for 2 copies");
}

// Three cover the mass and one of them is near: two to fetch, whatever has come by the second look.
TEST_F(ForesightTest, ExpectsWhatCoversTheMassAndIsNotNear) {
  start(40, 1, 2);
  begin_step();
  run(3, {6});
  tier->pipeline().drain();
  end_step();
  oracle.says = [](LayerId target) { return target == 3 ? std::vector<ExpertId>{3, 5, 6} : std::vector<ExpertId>{}; };
  begin_step();
  run(1, {0});
  tier->pipeline().drain();
  run(2, {0});
  run(3, {3, 5});
  end_step();
  // Layer 2 wants none, layer 3 two; one look of two steps ago (none) has faded by 0.875 twice.
  EXPECT_NEAR(foresight->stats().controller.expected, 2 / (0.875 * 0.875 + 2), 1e-9);
}

// Every predictor on whole models: the same tokens at every distance and budget.
TEST(ForesightExactness, TokensDependOnNothingOfIt) {
  for (const char* name : {"olmoe", "qwen3_moe-mixed-layers", "gpt_oss"}) {
    const GoldenCase golden = goldens(name)[1];
    for (const char* budget : {"min", "50%"}) {
      const auto engine = engine_of(name, small_engine(budget));
      const auto run = [&](const std::string& prefetch, const std::string& predictor, const std::string& horizon) {
        engine->set_prefetch(prefetch, predictor, horizon);
        const ExpertStats before = engine->expert_stats();
        GenerateRequest r;
        r.prompt = golden.ids;
        r.max_tokens = 24;
        r.sampler.temperature = 0;
        EXPECT_EQ(Generator(*engine, nullptr).generate(r).tokens, golden.greedy)
            << name << " " << budget << " " << predictor << " " << horizon;
        ExpertStats stats = engine->expert_stats();
        stats.ahead -= before.ahead;
        return stats;
      };
      for (const PredictorInfo& info : predictors())
        for (const char* horizon : {"2", "auto"}) {
          if (info.trained) continue;
          const ExpertStats stats = run("on", std::string(info.name), horizon);
          ASSERT_TRUE(stats.foresight);
          EXPECT_TRUE(stats.foresight->prediction.events > 0 || engine->config().sparse_layers() == 1) << name;
          EXPECT_EQ(stats.foresight->governor.issued, stats.ahead);
        }
      EXPECT_FALSE(run("on", "auto", "0").foresight);
      EXPECT_FALSE(run("off", "auto", "2").foresight);
    }
  }
}

}  // namespace
}  // namespace ef::testing
