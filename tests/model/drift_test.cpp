// When layers are checked, what counts as drift, and what follows; by hand.
#include "expertflow/model/drift.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ef {
namespace {

DriftOptions every(int n, bool q8 = false) {
  DriftOptions o;
  o.every = n;
  o.rounds_to_8_bits = q8;
  return o;
}

TEST(Drift, ChecksEveryNthStepAndTheNextSparseLayer) {
  Drift drift(every(3), {Format::kCount, Format::kF16, Format::kBF16});
  std::vector<LayerId> checked;
  for (int step = 1; step <= 12; ++step) {
    const bool announced = drift.next_step_is_checked();
    drift.begin_step();
    EXPECT_EQ(announced, step % 3 == 0);
    for (LayerId layer = 0; layer < 3; ++layer)
      if (drift.wants(layer)) {
        EXPECT_TRUE(announced);
        checked.push_back(layer);
      }
  }
  EXPECT_EQ(checked, (std::vector<LayerId>{1, 2, 1, 2}));
}

TEST(Drift, NoneWithoutAnInterval) {
  Drift drift(every(0), {Format::kF16});
  for (int step = 0; step < 5; ++step) {
    EXPECT_FALSE(drift.next_step_is_checked());
    drift.begin_step();
    EXPECT_FALSE(drift.wants(0));
  }
}

TEST(Drift, LimitsAreTheFormats) {
  const Drift plain(every(1), {Format::kF16, Format::kBF16, Format::kQ4K});
  EXPECT_EQ(plain.limit(0), 1e-3);
  EXPECT_EQ(plain.limit(1), 1e-2);
  EXPECT_EQ(plain.limit(2), 1e-3);
  EXPECT_EQ(Drift(every(1, true), {Format::kQ4K}).limit(0), 3e-2);
}

TEST(Drift, ALayerBeyondItsLimitFalls) {
  Drift drift(every(1), {Format::kF16, Format::kF16});
  const std::vector<float> exact = {3, 4};               // norm 5
  EXPECT_TRUE(drift.record(0, {{3.f, 4.004f}}, exact));  // 0.004 / 5 = 0.0008
  EXPECT_NEAR(drift.stats().worst, 0.0008, 1e-6);
  EXPECT_FALSE(drift.exact(0));
  EXPECT_FALSE(drift.record(1, {{3.f, 4.01f}}, exact));  // 0.002
  EXPECT_TRUE(drift.exact(1));
  EXPECT_TRUE(drift.any_exact());
  EXPECT_EQ(drift.stats().checks, 2u);
  EXPECT_EQ(drift.stats().fallen, std::vector<LayerId>{1});
  // From now on only the other one is looked at.
  for (int step = 0; step < 4; ++step) {
    drift.begin_step();
    EXPECT_TRUE(drift.wants(0));
    EXPECT_FALSE(drift.wants(1));
  }
}

TEST(Drift, NumbersThatAreNotFinite) {
  Drift drift(every(1), {Format::kF16});
  EXPECT_TRUE(drift.record(0, {{0.f, 0.f}}, {{0.f, 0.f}}));
  EXPECT_TRUE(drift.record(0, {{1.f, INFINITY}}, {{1.f, INFINITY}}));  // the model's own
  EXPECT_FALSE(drift.record(0, {{1.f, NAN}}, {{1.f, 2.f}}));
}

}  // namespace
}  // namespace ef
