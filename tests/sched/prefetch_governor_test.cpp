// Values worked out by hand: what fits the idle link, what is left alone, what is taken back, and when trials decide.
#include "expertflow/sched/prefetch_governor.h"

#include <gtest/gtest.h>

#include <cmath>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

using std::chrono::milliseconds;

GovernorOptions with(PrefetchMode mode) {
  GovernorOptions o;
  o.mode = mode;
  o.pool_bytes = 1 << 20;
  return o;
}

// A governor that has seen layers of 10 ms of which demanded copies held the link for 6: 4 ms idle each.
class Governor : public ::testing::Test {
 protected:
  Governor() : governor(with(PrefetchMode::kOn)) { see_layers(); }
  void see_layers() {
    governor.begin_step(milliseconds(0), 1);
    for (int layer = 0; layer < 3; ++layer) {
      link.demand_busy_seconds = 0.006 * layer;
      governor.on_event(layer, {}, link, milliseconds(10 * layer));
    }
  }
  static PrefetchCandidate candidate(LayerId layer, ExpertId expert, float probability, int distance,
                                     uint64_t bytes = 1000) {
    return {{layer, expert}, probability, distance, bytes};
  }
  PrefetchPlan plan(std::vector<PrefetchCandidate> candidates, uint64_t held = 0) {
    std::vector<std::pair<ExpertKey, float>> likely;
    for (const auto& c : candidates) likely.emplace_back(c.key, c.probability);
    return governor.plan(candidates, likely, held, link);
  }
  static std::vector<ExpertKey> keys(const PrefetchPlan& plan) {
    std::vector<ExpertKey> keys;
    for (const auto& c : plan.issue) keys.push_back(c.key);
    return keys;
  }
  PrefetchGovernor governor;
  LinkView link{1e6, 0, 0};  // 1000 bytes a millisecond
};

TEST_F(Governor, IssuesWhatCanBeginBeforeItsTurn) {
  EXPECT_NEAR(governor.stats().idle_seconds_per_layer, 0.004, 1e-12);
  EXPECT_NEAR(governor.stats().layer_seconds, 0.010, 1e-12);
  std::vector<PrefetchCandidate> many;
  for (ExpertId e = 0; e < 12; ++e) many.push_back(candidate(3, e, 0.9f, 1));
  EXPECT_EQ(plan(many).issue.size(), 10u) << "10 ms of 1000 bytes; the eleventh could not begin in time";
  EXPECT_EQ(governor.stats().over_budget, 2u);
  EXPECT_EQ(governor.stats().budget_bytes, 10000u);
}

TEST_F(Governor, TheLastMayEndLate) {
  link.bytes_per_second = 1.01e6;  // 10,100 bytes
  std::vector<PrefetchCandidate> many;
  for (ExpertId e = 0; e < 12; ++e) many.push_back(candidate(3, e, 0.9f, 1));
  EXPECT_EQ(plan(many).issue.size(), 11u) << "a tenth of the eleventh is there in time";
}

TEST_F(Governor, FartherLayersHaveMoreTime) {
  std::vector<PrefetchCandidate> many;
  for (ExpertId e = 0; e < 25; ++e) many.push_back(candidate(4, e, 0.9f, 2));
  for (ExpertId e = 0; e < 2; ++e) many.push_back(candidate(3, e, 0.8f, 1));
  const auto issued = keys(plan(many));
  ASSERT_EQ(issued.size(), 20u) << "two layers' time, filled by the likelier";
  EXPECT_EQ(issued.front(), (ExpertKey{4, 0}));
}

TEST_F(Governor, NearestLayersGoFirst) {
  const auto issued = keys(plan({candidate(4, 1, 0.9f, 2), candidate(3, 2, 0.6f, 1), candidate(3, 5, 0.8f, 1)}));
  EXPECT_EQ(issued, (std::vector<ExpertKey>{{3, 5}, {3, 2}, {4, 1}}));
}

TEST_F(Governor, WhatIsOnItsWayTakesItsPart) {
  link.prefetch_bytes = 9000;
  EXPECT_EQ(plan({candidate(3, 0, 0.9f, 1), candidate(3, 1, 0.9f, 1)}).issue.size(), 1u);
}

TEST_F(Governor, NothingBeforeTheLinkIsMeasuredOrWhereItIsBusy) {
  link.bytes_per_second = 0;
  EXPECT_TRUE(plan({candidate(3, 0, 0.9f, 1)}).issue.empty());
  PrefetchGovernor busy(with(PrefetchMode::kOn));
  busy.begin_step(milliseconds(0), 1);
  busy.on_event(0, {}, {1e6, 0, 0}, milliseconds(0));
  busy.on_event(1, {}, {1e6, 0.010, 0}, milliseconds(10));  // demanded copies all the time
  const auto c = candidate(2, 0, 0.9f, 1);
  EXPECT_TRUE(busy.plan({&c, 1}, {}, 0, {1e6, 0.010, 0}).issue.empty());
}

TEST_F(Governor, TheShareOfThePoolIsKept) {
  link.bytes_per_second = 1e9;
  const uint64_t quarter = (1 << 20) / 4;
  EXPECT_EQ(plan({candidate(3, 0, 0.9f, 1), candidate(3, 1, 0.9f, 1)}, quarter - 1000).issue.size(), 1u);
  EXPECT_EQ(governor.stats().over_share, 1u);
}

TEST_F(Governor, UnlikelyOnesAreLeftAlone) {
  EXPECT_TRUE(plan({candidate(3, 0, 0.39f, 1)}).issue.empty());
  EXPECT_EQ(governor.stats().unlikely, 1u);
}

TEST_F(Governor, FarLayersWantASurerGuess) {
  EXPECT_EQ(keys(plan({candidate(3, 0, 0.6f, 1), candidate(4, 1, 0.6f, 2), candidate(4, 2, 0.8f, 2)})),
            (std::vector<ExpertKey>{{3, 0}, {4, 2}}));
  EXPECT_EQ(governor.stats().unlikely, 1u) << "there will be a nearer look at layer 4";
}

// A predictor that says 0.92 and is never right: after so many, its like are no longer believed. (0 + 8 * 0.92) / (n +
// 8) falls below 0.4 at n = 11.
TEST_F(Governor, LearnsWhatAProbabilityIsWorth) {
  int issued = 0;
  for (int i = 0; i < 40; ++i) {
    if (!plan({candidate(3, 0, 0.92f, 1)}).issue.empty()) ++issued;
    link.demand_busy_seconds += 0.006;
    governor.on_event(3, {}, link, milliseconds(30 + 10 * i));
  }
  EXPECT_EQ(issued, 11);
  const GovernorStats stats = governor.stats();
  EXPECT_EQ(stats.unused, 11u);
  EXPECT_EQ(stats.unused_bytes, 11000u);
}

TEST_F(Governor, JudgesWhatItIssued) {
  plan({candidate(3, 0, 0.9f, 1), candidate(3, 1, 0.9f, 1), candidate(4, 0, 0.9f, 2)});
  const std::vector<ExpertId> wanted = {1, 7};
  governor.on_event(3, wanted, link, milliseconds(30));
  GovernorStats stats = governor.stats();
  EXPECT_EQ(stats.used, 1u);
  EXPECT_EQ(stats.unused, 1u);
  governor.end_step(milliseconds(40), 0);
  stats = governor.stats();
  EXPECT_EQ(stats.unused, 2u) << "its layer never came";
  EXPECT_EQ(stats.steps_on, 1u);
}

TEST_F(Governor, TakesBackWhatIsNoLongerLikely) {
  plan({candidate(4, 0, 0.9f, 2), candidate(4, 1, 0.9f, 2)});
  const auto again = plan({candidate(4, 1, 0.2f, 1), candidate(4, 2, 0.1f, 1)});
  EXPECT_EQ(again.cancel, (std::vector<ExpertKey>{{4, 0}})) << "not worth issuing is still worth keeping";
  EXPECT_TRUE(again.issue.empty()) << "4.1 is on its way, 4.2 is unlikely";
  EXPECT_TRUE(plan({candidate(5, 0, 0.1f, 1)}).cancel.empty()) << "nothing new was said about layer 4";
  EXPECT_EQ(plan({candidate(4, 1, 0.1f, 1)}).cancel, (std::vector<ExpertKey>{{4, 1}}));
}

TEST_F(Governor, ACopyWithoutASlotWasNotIssued) {
  plan({candidate(3, 0, 0.9f, 1)});
  governor.drop({3, 0});
  governor.on_event(3, {}, link, milliseconds(30));
  EXPECT_EQ(governor.stats().issued, 0u);
  EXPECT_EQ(governor.stats().unused, 0u);
}

TEST(GovernorModes, OffNeverLooksAhead) {
  PrefetchGovernor governor(with(PrefetchMode::kOff));
  governor.begin_step(milliseconds(0), 1);
  EXPECT_FALSE(governor.ahead());
}

TEST(GovernorModes, PromptsAreNotLookedAheadIn) {
  PrefetchGovernor governor(with(PrefetchMode::kOn));
  governor.begin_step(milliseconds(0), 31);
  EXPECT_TRUE(governor.ahead());
  governor.begin_step(milliseconds(0), 32);
  EXPECT_FALSE(governor.ahead());
}

TEST(GovernorModes, UnknownOnesAreRefused) {
  EXPECT_EQ(parse_prefetch_mode("auto"), PrefetchMode::kAuto);
  EXPECT_THROW(parse_prefetch_mode("yes"), ConfigError);
}

// Steps take so long with and without; how many were run with.
struct Course {
  BenefitTrial trial;
  double with = 1, without = 1, waiting = 0.5;
  int steps_with = 0;
  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      const bool on = trial.on();
      steps_with += on;
      trial.add(on ? with : without, waiting);
    }
  }
};

TEST(Trial, TurnsOnWhatHelps) {
  Course course;
  course.with = 0.8;
  course.run(4 + 3 * 12);  // settled, three pairs of two blocks of six
  ASSERT_EQ(course.trial.results().size(), 1u);
  const TrialResult& result = course.trial.results().front();
  EXPECT_TRUE(result.on);
  EXPECT_EQ(result.pairs, 3);
  EXPECT_EQ(result.step, 40u);
  EXPECT_NEAR(result.ratio, 0.8, 1e-9);
  EXPECT_TRUE(course.trial.on());
}

// On by chance, or while a text lasted: the steps behind it tell.
TEST(Trial, WhatHasJustTurnedOnIsTriedAgainSoon) {
  Course course;
  course.with = 0.8;
  course.run(40);
  ASSERT_TRUE(course.trial.on());
  course.with = 1.05;
  course.run(256 + 36);
  EXPECT_EQ(course.trial.trials(), 2u);
  EXPECT_FALSE(course.trial.on());
}

TEST(Trial, HarmIsBoundedAndRarer) {
  Course course;
  course.with = 1.3;
  course.run(40);
  EXPECT_FALSE(course.trial.on());
  EXPECT_EQ(course.steps_with, 18);
  // 18 steps with it lose 0.3 of a step each, and 0.1 unseen: 7.2, to be 0.3 % of the 2,400 steps behind it
  course.run(2399);
  EXPECT_EQ(course.trial.trials(), 1u);
  EXPECT_LT(0.3 * course.steps_with / 2439, 0.003);
  course.run(1 + 36);
  EXPECT_EQ(course.trial.trials(), 2u);
}

TEST(Trial, CheapOnesAreHeldTwiceAsLongEachTime) {
  Course course;
  course.with = 1.01;  // 18 steps with it lose 0.18, and 1.8 unseen: 660 steps at 0.3 %
  course.run(40 + 660 + 36);
  EXPECT_EQ(course.trial.trials(), 2u);
  course.run(1319);
  EXPECT_EQ(course.trial.trials(), 2u);
  course.run(1 + 36);
  EXPECT_EQ(course.trial.trials(), 3u);
}

TEST(Trial, NothingIsTriedWhereNothingWaits) {
  Course course;
  course.waiting = 0.01;
  course.run(2000);
  EXPECT_EQ(course.steps_with, 0);
  ASSERT_EQ(course.trial.results().size(), 1u);
  EXPECT_EQ(course.trial.results().front().reason(), "off without a trial: a step waits for 1.0 % of its time");
  course.waiting = 0.5, course.with = 0.8;  // experts no longer fit
  course.run(256 + 36);
  EXPECT_TRUE(course.trial.on());
}

TEST(Trial, NoGainIsOff) {
  Course course;
  course.run(40);
  EXPECT_FALSE(course.trial.on());
  EXPECT_FALSE(course.trial.trying());
}

TEST(Trial, WhatCannotBeToldApartIsOff) {
  BenefitTrial trial;
  for (int i = 0; i < 4 + 24 * 12; ++i) trial.add(i / 7 % 3 == 0 ? 1.0 : 1.5);  // whatever it says
  ASSERT_GE(trial.trials(), 1u);
  EXPECT_FALSE(trial.results().front().on);
}

TEST(Trial, ADriftBringsTheNextForward) {
  Course course;
  course.with = 1.3;
  course.run(40 + 192);
  EXPECT_FALSE(course.trial.trying());
  course.without = 2, course.with = 1.5;  // the link has become slower
  course.run(32);
  EXPECT_TRUE(course.trial.trying()) << "2,176 steps before its time";
  course.run(36);
  EXPECT_TRUE(course.trial.on());
}

// Three pairs of six steps at 1.3 lose 7.2 steps, with what is not seen: half a hundredth of 1,440.
TEST(Trial, ASmallDriftWaitsUntilTheLastTrialIsPaidFor) {
  Course course;
  course.with = 1.3;
  course.run(40 + 96);
  course.without = 1.4, course.with = 1.3;
  course.run(1000);
  EXPECT_FALSE(course.trial.trying());
  course.run(1440 - 1000 - 96 + 40);
  EXPECT_TRUE(course.trial.trying() || course.trial.trials() == 2);
}

TEST(Trial, EachAgreementMakesDriftsWaitLonger) {
  Course course;
  course.with = 1.01;  // lost: 18 steps of 0.11, half a hundredth of 396; held for 660
  course.run(40 + 660 + 36);
  ASSERT_EQ(course.trial.trials(), 2u);  // 792 from now on, or 198 for a leap
  course.run(96);
  course.without = 2, course.with = 2.1;
  course.run(198 - 96 - 1);
  EXPECT_FALSE(course.trial.trying()) << "twice as long a step, which was tried at once after the first answer";
  course.run(2);
  EXPECT_TRUE(course.trial.trying());
}

TEST(Trial, ScatterIsNotADrift) {
  TrialOptions options;
  for (const double noise : {0., options.noise}) {
    options.noise = noise;
    BenefitTrial trial(options);
    for (int i = 0; i < 40; ++i) trial.add(trial.on() ? 2 : 1);
    // A disk that others use: one step of four is 13, the others 1; their deviation is 5.2, four errors of means 3.4.
    for (int i = 0; i < 200; ++i) trial.add(i % 4 ? 1 : 13);
    for (int i = 0; i < 32; ++i) trial.add(8);  // the mean of late is 2.5 above the usual 4, more than half
    EXPECT_EQ(trial.trying(), noise == 0);
  }
}

TEST(Trial, DriftInTimeFavoursNeither) {
  BenefitTrial trial;
  for (int i = 0; i < 400 && trial.trials() == 0; ++i) trial.add(std::pow(0.995, i));  // a cache that fills
  ASSERT_EQ(trial.trials(), 1u);
  EXPECT_FALSE(trial.results().front().on);
}

}  // namespace
}  // namespace ef
