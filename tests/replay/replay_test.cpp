// Replays worked out by hand. Experts of 4096 bytes, a page each, and a link that takes 4.096 microseconds for one.
#include "expertflow/replay/replay.h"

#include <gtest/gtest.h>

#include <random>

#include "expertflow/base/errors.h"
#include "expertflow/cache/policy.h"
#include "expertflow/replay/report.h"

namespace ef {
namespace {

constexpr uint64_t kSlot = 4096;
using Choices = std::vector<std::vector<std::vector<uint16_t>>>;  // [step][layer] experts of one row

// Layers compute 10 microseconds.
Workload workload_of(const Choices& choices, int experts = 8) {
  auto trace = std::make_shared<Trace>();
  TraceHeader& h = trace->header;
  h.model = "hand", h.hidden = 1;
  h.top_k = h.candidates = int(choices[0][0].size());
  for (size_t i = 0; i < choices[0].size(); ++i) h.layers.push_back({experts, kSlot});
  for (size_t s = 0; s < choices.size(); ++s) {
    TraceStep step;
    step.step = s + 1;
    step.rows = {{0, 1, int32_t(s)}};
    for (const auto& chosen : choices[s]) {
      TraceLayer layer;
      layer.compute_ns = 10000;
      layer.chosen = chosen;
      step.layers.push_back(layer);
    }
    trace->steps.push_back(step);
  }
  return make_workload(trace, {});
}

ReplayOptions options_of(uint64_t slots) {
  ReplayOptions o;
  o.policy = "lru";
  o.budget_bytes = slots * kSlot;
  o.link.bytes_per_second = 1e9;
  o.before_router = 0.5;
  return o;
}

ReplayResult run(const Workload& w, const ReplayOptions& o, std::string_view forecast = "none") {
  const auto f = make_forecast(forecast, w);
  return replay(w, *f, o);
}

// Four layers whose experts all change from token to token: with the oracle's word the governor copies every one ahead.
Workload changing(size_t tokens) {
  Choices choices;
  for (size_t t = 0; t < tokens; ++t) {
    choices.emplace_back();
    for (uint16_t l = 0; l < 4; ++l)
      choices.back().push_back({uint16_t((t * 3 + l) % 8), uint16_t((t * 3 + l + 4) % 8)});
  }
  return workload_of(choices);
}

TEST(Replay, CountsHitsMissesAndStalls) {
  // One layer, two experts a token: {0,1}, {0,1}, {2,3}. Four slots.
  const ReplayResult r = run(workload_of({{{0, 1}}, {{0, 1}}, {{2, 3}}}), options_of(4));
  EXPECT_EQ(r.accesses, 6u);
  EXPECT_EQ(r.hits, 2u);
  EXPECT_EQ(r.misses, 4u);
  EXPECT_EQ(r.bytes_demand, 4 * kSlot);
  EXPECT_EQ(r.bytes_ahead, 0u);
  // A step with two misses: 5 us, then 4.096 for the first; 2.5 of compute while the second comes, 1.596 more, 2.5.
  const double stall = 2 * (4.096e-6 + (4.096e-6 - 2.5e-6));
  EXPECT_NEAR(r.stall_seconds, stall, 1e-12);
  EXPECT_NEAR(r.compute_seconds, 30e-6, 1e-12);
  EXPECT_NEAR(r.total_seconds, 30e-6 + stall, 1e-12);
  EXPECT_EQ(r.stalls, 2u);
}

TEST(Replay, TheResidentComputeWhileTheOthersCome) {
  // {0,1} then {0,2}: 2.5 us of expert 0 hide as much of the copy of 2.
  const ReplayResult r = run(workload_of({{{0, 1}}, {{0, 2}}}), options_of(4));
  EXPECT_EQ(r.hits, 1u);
  EXPECT_NEAR(r.stall_seconds, 4.096e-6 + 1.596e-6 + 1.596e-6, 1e-12);
}

TEST(Replay, FewerSlotsThanExpertsGoInWaves) {
  const ReplayResult r = run(workload_of({{{0, 1, 2}}, {{0, 1, 2}}}), options_of(1));
  EXPECT_EQ(r.accesses, 6u);
  EXPECT_EQ(r.hits + r.misses, 6u);
  EXPECT_GE(r.bytes_demand, 5 * kSlot);  // one may have stayed
}

// 0 1 2 0 1 3 0 1 2 in two slots: 0 and 1 stay, 2, 3 and 2 pass by. A step waits for the whole copy of what it misses.
TEST(ReplayBelady, KeepsWhatIsUsedSoonestAndLetsTheRestPass) {
  const Workload w = workload_of({{{0}}, {{1}}, {{2}}, {{0}}, {{1}}, {{3}}, {{0}}, {{1}}, {{2}}});
  ReplayOptions o = options_of(2);
  EXPECT_EQ(run(w, o).misses, 9u);  // LRU: a cycle of three
  o.policy = "belady";
  const ReplayResult r = run(w, o);
  EXPECT_EQ(r.hits, 4u);
  EXPECT_EQ(r.misses, 5u);
  EXPECT_EQ(r.bytes_demand, 5 * kSlot);
  EXPECT_NEAR(r.stall_seconds, 5 * 4.096e-6, 1e-12);
}

// Slots of one size, on demand: it is the clairvoyant bound, and nobody does better.
TEST(ReplayBelady, NoPolicyBeatsIt) {
  std::mt19937_64 random(3);
  Choices choices;
  for (int s = 0; s < 80; ++s) {
    choices.emplace_back();
    for (int l = 0; l < 3; ++l) {
      const auto first = uint16_t(random() % 8);
      choices.back().push_back({first, uint16_t((first + 1 + random() % 7) % 8)});
    }
  }
  const Workload w = workload_of(choices);
  for (const uint64_t slots : {2, 5, 9, 14, 20}) {
    ReplayOptions o = options_of(slots);
    o.policy = "belady";
    const ReplayResult best = run(w, o);
    EXPECT_EQ(best.bytes(), clairvoyant_bytes(w, o.budget_bytes)) << slots;
    for (const PolicyInfo& info : policies()) {
      o.policy = info.name;
      EXPECT_GE(run(w, o).misses, best.misses) << info.name << ", " << slots;
    }
  }
}

TEST(Replay, AnOracleLeavesNoStallWhereTheLinkHasTime) {
  Choices choices;
  for (uint16_t s = 0; s < 6; ++s)
    choices.push_back({{uint16_t(s)}, {uint16_t((s + 1) % 8)}, {uint16_t((s + 3) % 8)}, {uint16_t((s + 5) % 8)}});
  const Workload w = workload_of(choices);
  const ReplayResult demand = run(w, options_of(8));
  ReplayOptions o = options_of(8);
  o.pool_share = 0.5;
  const ReplayResult ahead = run(w, o, "oracle");
  EXPECT_EQ(demand.hits, 0u);  // no expert comes back within its layer
  EXPECT_NEAR(demand.stall_seconds, 24 * 4.096e-6, 1e-12);
  // Of a token's first layer, only 5 us of attention hide the copy: enough.
  EXPECT_EQ(ahead.hits, 24u);
  EXPECT_EQ(ahead.stall_seconds, 0);
  EXPECT_EQ(ahead.ready, 24u);
  EXPECT_DOUBLE_EQ(ahead.ready_recall(), 1);
  EXPECT_EQ(ahead.bytes_ahead, 24 * kSlot);
  EXPECT_EQ(ahead.bytes_demand, 0u);
  EXPECT_EQ(ahead.bytes_wasted, 0u);
}

TEST(Replay, WrongGuessesAreWaste) {
  // What the layer asked for last is never what it asks for next, and never near.
  Choices choices;
  for (uint16_t s = 0; s < 16; ++s) choices.push_back({{uint16_t(s % 8)}, {uint16_t(s % 8)}, {uint16_t(s % 8)}});
  ReplayOptions o = options_of(2);
  o.pool_share = 1;
  const ReplayResult r = run(workload_of(choices), o, "previous-token");
  EXPECT_EQ(r.hits, 0u);
  EXPECT_EQ(r.ready, 0u);
  EXPECT_GT(r.bytes_ahead, 0u);
  EXPECT_EQ(r.bytes_ahead, r.bytes_wasted);
}

TEST(Replay, AdaptsTheDistanceToTheLink) {
  Choices choices;
  for (uint16_t s = 0; s < 250; ++s) {
    std::vector<std::vector<uint16_t>> step;
    for (uint16_t l = 0; l < 8; ++l) step.push_back({uint16_t((s * 5 + l) % 32)});
    choices.push_back(step);
  }
  const Workload w = workload_of(choices, 32);
  ReplayOptions o = options_of(24);
  o.distance = 0;
  o.link.bytes_per_second = 0.2e9;  // 20.5 us a copy, 10 us a layer: 3
  const ReplayResult slow = run(w, o, "oracle");
  EXPECT_EQ(slow.distance.formula, 3);
  o.link.bytes_per_second = 4e9;
  const ReplayResult fast = run(w, o, "oracle");
  EXPECT_EQ(fast.distance.formula, 1);
  EXPECT_EQ(fast.distance_within, fast.steps);
  EXPECT_GT(slow.mean_distance, fast.mean_distance);
}

// Copies that come late make S larger by the wait; they are not too many.
TEST(Replay, LateCopiesAreStallsAlone) {
  Choices choices;
  for (uint16_t s = 0; s < 40; ++s) {
    std::vector<std::vector<uint16_t>> step;
    for (uint16_t l = 0; l < 4; ++l) step.push_back({uint16_t((s * 3 + l) % 8)});
    choices.push_back(step);
  }
  ReplayOptions o = options_of(8);
  o.distance = 0, o.most_distance = 3, o.pool_share = 1, o.within_link = false;
  o.link.bytes_per_second = 0.3e9;  // 13.7 us a copy, 10 us a layer
  const ReplayResult r = run(workload_of(choices), o, "oracle");
  EXPECT_GT(r.late, 0u);
  EXPECT_GT(r.distance.stalls, 0u);
  EXPECT_EQ(r.distance.overfetches, 0u);
  // And what nobody asks for is one each.
  o.budget_bytes = 2 * kSlot;
  const ReplayResult wrong = run(workload_of(choices), o, "previous-token");
  EXPECT_GT(wrong.distance.overfetches, 3u);
}

// Says the same probabilities of every layer.
class Says final : public Forecast {
 public:
  explicit Says(std::vector<float> p) : p_(std::move(p)) {}
  void predict(size_t, LayerId, LayerId, std::span<float> p) override { std::copy(p_.begin(), p_.end(), p.begin()); }

 private:
  std::vector<float> p_;
};

// 0.5 + 0.3 cover three quarters of what is said; what is below the floor is named and not copied.
TEST(Replay, CandidatesCoverAMassOfProbability) {
  const Workload w = workload_of({{{7}, {0}}, {{7}, {1}}, {{7}, {2}}, {{7}, {3}}});
  Says says({0.5f, 0.3f, 0.15f, 0.05f, 0, 0, 0, 0});
  ReplayOptions o = options_of(8);
  o.least_probability = 0.4f, o.candidates.all.mass = 0.75f;
  const ReplayResult r = replay(w, says, o);
  EXPECT_EQ(r.predicted, 2u);  // experts 0 and 1 of layer 1
  EXPECT_EQ(r.ahead, 2u);      // expert 0 of both layers
  o.candidates.all.mass = 1;
  EXPECT_EQ(replay(w, says, o).predicted, 4u);
  o.candidates.all.most = 1;
  EXPECT_EQ(replay(w, says, o).predicted, 1u);
  o.candidates.layers = {CandidateRule{}, CandidateRule{1, 0, 0, 3}};
  EXPECT_EQ(replay(w, says, o).predicted, 3u);
}

TEST(Replay, TheDistanceCountsTheCandidatesThatAreNotNear) {
  Choices choices(200, {{7}, {6}, {5}});
  const Workload w = workload_of(choices);
  Says says({0.5f, 0.3f, 0.2f, 0, 0, 0, 0, 0});
  ReplayOptions o = options_of(12);
  o.distance = 0, o.advise_only = true, o.candidates.all.mass = 0.75f;
  o.link.bytes_per_second = 0.2e9;  // 20.5 us a copy, 10 us a layer
  const ReplayResult r = replay(w, says, o);
  EXPECT_DOUBLE_EQ(r.distance.expected, 2);  // experts 0 and 1, which never come
  EXPECT_EQ(r.distance.formula, 5);          // ceil(2 * 20.5 / 10)
}

// Steps of two rows: of unlike ones every fourth, of like ones the others. Like rows are at a distance of 0.
TEST(Replay, DiversityMovesTheDistanceByItsGain) {
  auto trace = std::make_shared<Trace>();
  trace->header.model = "hand", trace->header.hidden = 1;
  trace->header.top_k = trace->header.candidates = 1;
  trace->header.layers.assign(4, {8, kSlot});
  for (size_t s = 0; s < 240; ++s) {
    TraceStep step;
    step.step = s + 1;
    step.rows = {{0, 1, int32_t(s)}, {1, 1, int32_t(s)}};
    for (uint16_t l = 0; l < 4; ++l) {
      TraceLayer layer;
      layer.compute_ns = 10000;
      layer.chosen = {uint16_t(s % 8), uint16_t((s + (s % 4 == 3 ? 1 : 0)) % 8)};
      step.layers.push_back(layer);
    }
    trace->steps.push_back(step);
  }
  const Workload w = make_workload(trace, {});
  const auto mean = [&](double gain) {
    ReplayOptions o = options_of(8);
    o.distance = 0, o.diversity_gain = gain, o.link.bytes_per_second = 0.2e9;
    return run(w, o, "oracle").mean_distance;
  };
  EXPECT_NE(mean(1), mean(0));
  EXPECT_NE(mean(-1), mean(0));
}

TEST(Replay, IsDeterministicDownToTheReport) {
  Choices choices;
  for (uint16_t s = 0; s < 60; ++s)
    choices.push_back({{uint16_t(s * 7 % 8), uint16_t((s * 7 + 3) % 8)}, {1, uint16_t(2 + s % 6)}});
  const std::vector<NamedWorkload> workloads = {{"a", workload_of(choices)}};
  SweepOptions o;
  o.policies = {"lru", "next-use", "arc"};
  o.predictors = {"none", "oracle", "transitions", "frequency"};
  o.distances = {1, 0};
  o.shares = {0.25, 0.5};
  const ForecastMaker make = [](std::string_view name, const NamedWorkload& w) {
    return make_forecast(name, w.workload);
  };
  const auto one = sweep(workloads, o, make);
  o.threads = 3;
  const auto two = sweep(workloads, o, make);
  EXPECT_EQ(one.size(), 2u * 3 * (1 + 3 * 2));
  EXPECT_EQ(replay_table(one), replay_table(two));
  EXPECT_EQ(replay_csv(one), replay_csv(two));
  EXPECT_EQ(replay_json(one), replay_json(two));
  EXPECT_EQ(replay_svg(one), replay_svg(two));
  EXPECT_EQ(one[0].policy, "lru");
  EXPECT_EQ(one[0].gap_closed(), 0);
  EXPECT_NE(replay_svg(one).find("clairvoyant"), std::string::npos);
  for (const char* title :
       {"a: MB copied a token by residency", "a: ms waited a token by residency", "a: mean distance S"})
    EXPECT_NE(replay_svg(one).find(title), std::string::npos) << title;
  EXPECT_NE(replay_table(one).find("clairvoyant MB | gap closed %"), std::string::npos);
  // LRU on demand is its own measure on a link that changes, too.
  o.base.link_changes = {{0, o.bandwidths[0] / 10}};
  for (const SweepRow& row : sweep(workloads, o, make))
    if (row.policy == "lru" && row.predictor == "none") {
      EXPECT_EQ(row.result.stall_seconds, row.lru_stall_seconds);
      EXPECT_GT(row.lru_stall_seconds, one[0].lru_stall_seconds);
    }
}

TEST(Replay, GainsAreCombinedWithAdaptiveDistancesAlone) {
  SweepOptions o;
  o.predictors = {"none", "oracle"}, o.distances = {1, 0}, o.diversity_gains = {-0.5, 0.2};
  const auto rows = sweep({{"a", changing(4)}}, o, [](std::string_view name, const NamedWorkload& w) {
    return make_forecast(name, w.workload);
  });
  ASSERT_EQ(rows.size(), 1u + 1 + 2);
  EXPECT_EQ(rows[1].distance, 1);
  EXPECT_EQ(rows[2].diversity_gain, -0.5);
  EXPECT_NE(distance_text(rows[2]).find("gain -0.5"), std::string::npos);
  EXPECT_EQ(distance_text(rows[3]).find("gain"), std::string::npos);
  EXPECT_EQ(replay_json(rows)[3].at("diversity_gain"), 0.2);
}

TEST(Replay, GapClosedIsTheShareOfWhatLruReadsTooMuch) {
  SweepRow row;
  row.lru_bytes = 1000, row.clairvoyant_bytes = 400;
  row.result.bytes_demand = 700;
  EXPECT_DOUBLE_EQ(row.gap_closed(), 0.5);
  row.result.bytes_ahead = 400;
  EXPECT_LT(row.gap_closed(), 0);
}

TEST(Workload, SplitsRowsAndRefusesWhatCannotBeReplayed) {
  auto trace = std::make_shared<Trace>();
  trace->header.top_k = trace->header.candidates = 1;
  trace->header.layers = {{4, 100}};
  EXPECT_THROW(make_workload(trace, {}), ConfigError);
  TraceStep step;
  step.rows = {{0, 1, 0}, {0, 2, 1}, {0, 3, 2}};
  step.layers.resize(1);
  step.layers[0].chosen = {2, 2, 1};
  trace->steps = {step};
  EXPECT_THROW(make_workload(trace, {}), ConfigError);  // no times
  WorkloadOptions o;
  o.layer_seconds = 1e-3;
  const Workload whole = make_workload(trace, o);
  ASSERT_EQ(whole.steps.size(), 1u);
  EXPECT_EQ(whole.steps[0].events[0].experts, (std::vector<ExpertId>{1, 2}));
  EXPECT_EQ(whole.steps[0].events[0].rows, (std::vector<int32_t>{1, 2}));
  o.split_rows = true;
  o.max_tokens = 2;
  const Workload split = make_workload(trace, o);
  ASSERT_EQ(split.steps.size(), 2u);
  EXPECT_EQ(split.tokens, 2u);
  EXPECT_EQ(split.steps[1].events[0].experts, (std::vector<ExpertId>{2}));
  EXPECT_EQ(split.layer_events().size(), 2u);
}

TEST(Replay, RefusesImpossibleOptions) {
  const Workload w = workload_of({{{0}}});
  const auto refused = [&](auto&& change) {
    ReplayOptions o = options_of(2);
    change(o);
    EXPECT_THROW(run(w, o), ConfigError);
  };
  refused([](ReplayOptions& o) { o.policy = "fifo"; });
  refused([](ReplayOptions& o) { o.budget_bytes = 100; });
  refused([](ReplayOptions& o) { o.link.bytes_per_second = 0; });
  refused([](ReplayOptions& o) { o.before_router = 1; });
  refused([](ReplayOptions& o) { o.distance = -1; });
  refused([](ReplayOptions& o) { o.pool_share = 2; });
  EXPECT_THROW(make_forecast("prophet", w), ConfigError);
}

TEST(ReplayGovernor, SwitchesItselfOnWhereItPaysAndOffWhereItDoesNot) {
  const Workload w = changing(1200);
  ReplayOptions o = options_of(12);
  o.least_probability = 0;
  const double without = run(w, o).total_seconds;
  o.governor = PrefetchMode::kAuto;
  const ReplayResult helped = run(w, o, "oracle");
  ASSERT_TRUE(helped.governor.has_value());
  EXPECT_LT(helped.total_seconds, 0.9 * without) << helped.governor->reason();
  EXPECT_GT(helped.governor->steps_on, 900u) << helped.governor->reason();
  // A forecast that is wrong most of the time and says so (0.4) is left alone.
  const ReplayResult misled = run(w, o, "previous-token");
  EXPECT_EQ(misled.governor->issued, 0u);
  EXPECT_DOUBLE_EQ(misled.total_seconds, without);
  o.governor = PrefetchMode::kOn;
  EXPECT_EQ(run(w, o, "oracle").governor->steps_off, 0u);
}

TEST(ReplayGovernor, AdviceAloneCopiesNothing) {
  ReplayOptions o = options_of(12);
  o.policy = "next-use", o.advise_only = true, o.least_probability = 0, o.distance = 3;
  const Workload w = changing(400);
  const ReplayResult advised = run(w, o, "oracle");
  EXPECT_EQ(advised.bytes_ahead, 0u);
  EXPECT_LE(advised.misses, run(w, o).misses);
}

}  // namespace
}  // namespace ef
