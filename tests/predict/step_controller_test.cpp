#include "expertflow/predict/step_controller.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

// 4 experts of 10 MB, a layer of 1 ms: S = ceil(40 MB / (bandwidth * 1 ms)).
StepControllerOptions options_at(double gb_per_second) {
  StepControllerOptions o;
  o.most = 12;
  o.expert_bytes = 10e6;
  o.expected = 4, o.layer_seconds = 1e-3;
  o.bandwidth = gb_per_second * 1e9;
  return o;
}

void run_token(StepController& controller, double gb_per_second, double expected = 4, double seconds = 1e-3) {
  for (int layer = 0; layer < 5; ++layer) {
    controller.on_layer(expected, seconds);
    controller.on_copies(expected * 10e6, expected * 10e6 / (gb_per_second * 1e9));
  }
  controller.end_step(1);
}

std::string last_reason(const StepController& controller) {
  const auto changes = controller.stats().changes;
  return changes.empty() ? "" : changes.back().reason;
}

TEST(StepController, BeginsWithTheFormulaOfTheCalibratedLink) {
  EXPECT_EQ(StepController(options_at(8)).distance(), 5);
  EXPECT_EQ(StepController(options_at(16)).distance(), 3);  // 2.5
  EXPECT_EQ(StepController(options_at(20)).distance(), 2);
  EXPECT_EQ(StepController(options_at(32)).distance(), 2);
  EXPECT_EQ(StepController(options_at(64)).distance(), 1);
  EXPECT_EQ(StepController(options_at(1)).distance(), 12);  // 40, at most 12
  EXPECT_EQ(StepController(options_at(0)).distance(), 1);   // unknown
}

TEST(StepController, RenewsEveryHundredTokens) {
  StepController controller(options_at(16));
  // 2.0 layers instead of 2.5: not a quarter less, so it waits.
  for (int i = 0; i < 99; ++i) run_token(controller, 16, 3.2);
  EXPECT_EQ(controller.stats().renewals, 0u);
  EXPECT_EQ(controller.stats().expected, 4);
  run_token(controller, 16, 3.2);
  EXPECT_EQ(controller.stats().renewals, 1u);
  EXPECT_NEAR(controller.stats().expected, 3.2, 1e-9);
  EXPECT_EQ(controller.distance(), 2);
  EXPECT_EQ(last_reason(controller), "renewed: 3.20 experts of 10000000 bytes at 1.6e+10 B/s, a layer takes 0.001 s");
}

TEST(StepController, FollowsAStepOfTheLinkWithinHundredTokens) {
  StepController controller(options_at(32));
  for (int i = 0; i < 130; ++i) run_token(controller, 32);
  ASSERT_EQ(controller.distance(), 2);
  for (int i = 0; i < 100; ++i) run_token(controller, 8);
  EXPECT_EQ(controller.distance(), 5);
  for (int i = 0; i < 100; ++i) run_token(controller, 32);
  EXPECT_EQ(controller.distance(), 2);
  EXPECT_EQ(controller.stats().changes.front().to, controller.stats().changes[1].from);
}

TEST(StepController, FollowsASlowerLayer) {
  StepController controller(options_at(8));
  for (int i = 0; i < 100; ++i) run_token(controller, 8, 4, 5e-3);
  EXPECT_EQ(controller.distance(), 1);
}

TEST(StepController, FeedbackMovesByOneAtMost) {
  StepController controller(options_at(16));
  const auto stall = [&](int times) {
    for (int i = 0; i < times; ++i) controller.on_stall();
    controller.end_step(1);
  };
  stall(3);
  EXPECT_EQ(controller.distance(), 3);
  stall(1);
  EXPECT_EQ(controller.distance(), 4);
  EXPECT_EQ(last_reason(controller), "compute waited for 4 copies");
  stall(40);
  EXPECT_EQ(controller.distance(), 4);
  const auto unused = [&](int times) {
    for (int i = 0; i < times; ++i) controller.on_prefetch(false);
    controller.end_step(1);
  };
  unused(2);
  controller.on_prefetch(true);
  unused(2);  // not in a row
  EXPECT_EQ(controller.distance(), 4);
  unused(1);
  EXPECT_EQ(controller.distance(), 3);
  EXPECT_EQ(last_reason(controller), "3 copies in a row were unused or far too early");
  unused(3);
  EXPECT_EQ(controller.distance(), 2);
  unused(3);
  EXPECT_EQ(controller.distance(), 2);
  const auto stats = controller.stats();
  EXPECT_EQ(stats.formula, 3);
  EXPECT_EQ(stats.offset, -1);
  EXPECT_EQ(stats.stalls, 44u);
}

TEST(StepController, AHighHitRateRaisesOnceARenewal) {
  StepController controller(options_at(16));
  for (int i = 0; i < 100; ++i) {
    controller.on_hits(95, 100);
    run_token(controller, 16);
  }
  EXPECT_EQ(controller.distance(), 3);  // not above 95 %
  for (int i = 0; i < 99; ++i) {
    controller.on_hits(96, 100);
    run_token(controller, 16);
  }
  EXPECT_EQ(controller.distance(), 3);
  controller.on_hits(96, 100);
  run_token(controller, 16);
  EXPECT_EQ(controller.distance(), 4);
  EXPECT_EQ(last_reason(controller), "hit rate 96.0 %");
}

TEST(StepController, DiversityEntersThroughTheExpectedExperts) {
  auto options = options_at(16);
  options.renew_tokens = 1;
  StepController controller(options);
  const auto run = [&](double pairwise) {
    controller.on_diversity(pairwise);
    run_token(controller, 16);
    return controller.stats().expected;
  };
  EXPECT_DOUBLE_EQ(run(10), 4);
  EXPECT_DOUBLE_EQ(run(10), 4);
  EXPECT_DOUBLE_EQ(run(20), 4.8);  // twice the usual: a fifth more
  EXPECT_LT(run(1), 4);
}

TEST(StepController, ForgetsWhatWasLearnedAboutAnotherFormula) {
  StepController controller(options_at(16));
  for (int i = 0; i < 4; ++i) controller.on_stall();
  run_token(controller, 16);
  ASSERT_EQ(controller.distance(), 4);
  for (int i = 0; i < 100; ++i) run_token(controller, 64);
  EXPECT_EQ(controller.distance(), 1);
  EXPECT_EQ(controller.stats().offset, 0);
}

TEST(StepController, RefusesImpossibleLimits) {
  auto options = options_at(16);
  options.most = 0;
  EXPECT_THROW(StepController{options}, ConfigError);
  options.most = 1;
  options.renew_tokens = 0;
  EXPECT_THROW(StepController{options}, ConfigError);
}

// A measurement of the link by itself counts at once.
TEST(StepController, ACalibrationCountsAtOnce) {
  StepControllerOptions o;
  o.expert_bytes = 1e6, o.bandwidth = 1e9, o.layer_seconds = 1e-3, o.expected = 2;
  StepController c(o);
  EXPECT_EQ(c.stats().first, 2);  // 2 x 1 MB at 1 GB/s take 2 ms
  EXPECT_EQ(c.distance(), 2);
  c.on_calibration(0.5e9);
  EXPECT_EQ(c.distance(), 4);
  ASSERT_EQ(c.stats().changes.size(), 1u);
  EXPECT_EQ(c.stats().changes[0].reason.rfind("calibrated: ", 0), 0u) << c.stats().changes[0].reason;
  c.on_calibration(0);  // failed: says nothing
  EXPECT_EQ(c.distance(), 4);
  EXPECT_EQ(c.stats().first, 2);
}

TEST(Diversity, IsTheSumOverPairs) {
  // (0,0), (3,4), (6,8): 25 + 100 + 25.
  EXPECT_DOUBLE_EQ(pairwise_distance(std::vector<float>{0, 0, 3, 4, 6, 8}, 3), 150);
  EXPECT_DOUBLE_EQ(pairwise_distance(std::vector<float>{1, 2, 1, 2}, 2), 0);
  EXPECT_DOUBLE_EQ(pairwise_distance(std::vector<float>{1, 2}, 1), 0);
}

}  // namespace
}  // namespace ef
