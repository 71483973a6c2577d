#include "expertflow/replay/link_model.h"

#include <gtest/gtest.h>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

using std::chrono::microseconds;

// 1 GB/s: 1000 bytes take a microsecond.
LinkOptions one(int engines = 1, Duration latency = {}) { return {1e9, latency, engines}; }

std::vector<ExpertId> ids(const std::vector<Link::Copy>& copies) {
  std::vector<ExpertId> out;
  for (const Link::Copy& copy : copies) out.push_back(copy.key.expert);
  return out;
}

TEST(Link, CopiesOneAfterTheOther) {
  Link link(one());
  link.submit({0, 1}, 1000, false, Duration(0));
  link.submit({0, 2}, 2000, false, Duration(0));
  EXPECT_EQ(link.next_arrival(), microseconds(1));
  EXPECT_TRUE(link.arrived(Duration(999)).empty());
  EXPECT_EQ(ids(link.arrived(microseconds(1))), (std::vector<ExpertId>{1}));
  EXPECT_EQ(link.next_arrival(), microseconds(3));
  EXPECT_EQ(ids(link.arrived(microseconds(3))), (std::vector<ExpertId>{2}));
  EXPECT_EQ(link.next_arrival(), std::nullopt);
  EXPECT_DOUBLE_EQ(link.busy_seconds(microseconds(10)), 3e-6);
}

TEST(Link, EnginesShareTheBandwidth) {
  Link link(one(2, microseconds(5)));
  link.submit({0, 1}, 1000, false, Duration(0));
  link.submit({0, 2}, 1000, false, Duration(0));
  // Each at half of the bandwidth: 5 + 2 microseconds, side by side.
  EXPECT_EQ(link.copy_time(1000), microseconds(7));
  EXPECT_EQ(ids(link.arrived(microseconds(7))), (std::vector<ExpertId>{1, 2}));
  EXPECT_DOUBLE_EQ(link.busy_seconds(microseconds(7)), 7e-6);
}

TEST(Link, DemandGoesBeforeWhatIsAheadButInterruptsNothing) {
  Link link(one());
  link.submit({0, 1}, 1000, true, Duration(0));
  link.submit({0, 2}, 1000, true, Duration(0));
  EXPECT_TRUE(link.arrived(Duration(500)).empty());  // 1 is under way
  link.submit({0, 3}, 1000, false, Duration(500));
  EXPECT_DOUBLE_EQ(link.ahead_seconds(), 2e-6);
  const auto copies = link.arrived(microseconds(3));
  EXPECT_EQ(ids(copies), (std::vector<ExpertId>{1, 3, 2}));
  EXPECT_EQ(copies[1].begin, microseconds(1));
}

TEST(Link, ADemandThatComesLaterDoesNotUndoThePast) {
  Link link(one());
  link.submit({0, 1}, 1000, true, Duration(0));
  link.submit({0, 2}, 1000, false, microseconds(5));
  EXPECT_EQ(ids(link.arrived(microseconds(6))), (std::vector<ExpertId>{1, 2}));
}

TEST(Link, OfWhatIsAheadTheNearestLayerGoesFirst) {
  Link link(one());
  link.submit({5, 1}, 1000, true, Duration(0));
  link.arrived(Duration(1));  // under way
  for (const LayerId layer : {4, 2, 4, 3}) link.submit({layer, layer}, 1000, true, Duration(1));
  EXPECT_EQ(ids(link.arrived(microseconds(9))), (std::vector<ExpertId>{1, 2, 3, 4, 4}));
}

TEST(Link, PromotesAndCancelsWhatIsQueued) {
  Link link(one());
  for (const ExpertId e : {1, 2, 3}) link.submit({0, e}, 1000, true, Duration(0));
  link.arrived(Duration(1));  // 1 begins
  EXPECT_FALSE(link.promote({0, 1}));
  EXPECT_TRUE(link.promote({0, 3}));
  EXPECT_EQ(link.cancel([](ExpertKey) { return true; }), (std::vector<ExpertKey>{{0, 2}}));
  EXPECT_EQ(ids(link.arrived(microseconds(9))), (std::vector<ExpertId>{1, 3}));
}

TEST(Link, RefusesImpossibleOnes) {
  EXPECT_THROW(Link({0, {}, 1}), ConfigError);
  EXPECT_THROW(Link({1e9, {}, 0}), ConfigError);
  EXPECT_THROW(Link({1e9, Duration(-1), 1}), ConfigError);
}

TEST(Link, DemandIsCountedFromItsQueueingToItsEnd) {
  Link link(one());
  link.submit({0, 1}, 1000, true, Duration(0));
  link.arrived(Duration(0));                      // begins: under way until 1
  link.submit({0, 2}, 1000, false, Duration(0));  // 1 to 2
  link.arrived(microseconds(1));
  EXPECT_DOUBLE_EQ(link.demand_busy_seconds(), 1e-6);
  link.arrived(microseconds(5));
  EXPECT_DOUBLE_EQ(link.demand_busy_seconds(), 2e-6);
  link.submit({0, 3}, 1000, true, microseconds(6));
  link.submit({0, 4}, 1000, true, microseconds(6));
  link.arrived(microseconds(6));
  EXPECT_EQ(link.ahead_bytes(), 2000u);
  EXPECT_TRUE(link.promote({0, 4}));  // waits behind 3
  link.arrived(microseconds(9));
  EXPECT_DOUBLE_EQ(link.demand_busy_seconds(), 2e-6 + 2e-6);
}

}  // namespace
}  // namespace ef
