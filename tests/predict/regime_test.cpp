// Regimes by rows, with the bounds that they are named by.
#include "expertflow/predict/regime.h"

#include <gtest/gtest.h>

namespace ef {
namespace {

TEST(Regime, BoundsByRows) {
  EXPECT_EQ(regime_of(0).rows, 1);
  EXPECT_EQ(regime_of(31).rows, 1);
  EXPECT_EQ(regime_of(32).rows, 32);
  EXPECT_EQ(regime_of(256).rows, 32);
  EXPECT_FALSE(regime_of(256).eager_eviction);
  EXPECT_TRUE(regime_of(257).eager_eviction);
  EXPECT_FALSE(regime_of(511).group_tokens);
  EXPECT_TRUE(regime_of(512).group_tokens);
  // Few rows want sure candidates; many leave most of the link to demand.
  EXPECT_GT(regime_of(1).least_probability, regime_of(32).least_probability);
  EXPECT_LT(regime_of(300).byte_share, regime_of(32).byte_share);
}

TEST(RegimeTracker, CountsStepsAndSaysWhyItChanged) {
  RegimeTracker tracker;
  tracker.begin_step(1);
  tracker.begin_step(4);
  EXPECT_TRUE(tracker.stats().changes.empty());
  tracker.begin_step(300);
  tracker.begin_step(1);
  const RegimeStats& stats = tracker.stats();
  ASSERT_EQ(stats.changes.size(), 2u);
  EXPECT_EQ(stats.changes[0].step, 3u);
  EXPECT_EQ(stats.changes[0].from, regime_of(1).name);
  EXPECT_EQ(stats.changes[0].to, regime_of(300).name);
  EXPECT_EQ(stats.changes[0].reason, "a step of 300 rows: 257 or more");
  EXPECT_EQ(stats.changes[1].reason, "a step of 1 rows: fewer than 32");
  EXPECT_EQ(stats.regimes[0].steps, 3u);
  EXPECT_EQ(stats.regimes[0].rows, 6u);
  EXPECT_EQ(stats.regimes[2].rows, 300u);
  EXPECT_EQ(stats.name, regime_of(1).name);
}

TEST(RegimeTracker, CapsCandidates) {
  RegimeTracker tracker;
  tracker.begin_step(1);
  EXPECT_FALSE(tracker.admits(0.49f, 0, 32));
  EXPECT_TRUE(tracker.admits(0.51f, 31, 32));
  tracker.begin_step(300);  // a quarter of the layer's experts
  EXPECT_TRUE(tracker.admits(0.9f, 7, 32));
  EXPECT_FALSE(tracker.admits(0.9f, 8, 32));
  EXPECT_EQ(tracker.stats().capped, 2u);
}

}  // namespace
}  // namespace ef
