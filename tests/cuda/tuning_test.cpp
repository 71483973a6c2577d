// From how many rows on tensor cores are taken, by times that are given.
#include "expertflow/backend/cuda/cuda_tuning.h"

#include <gtest/gtest.h>

namespace ef::cuda {
namespace {

// Many rows take 10 at any number, few rows so many; one time of theirs is another.
int64_t from(double each, int64_t disturbed = 0, double instead = 0) {
  const auto few = [&](int64_t rows) { return rows == disturbed ? instead : each * double(rows); };
  return crossover({2, 3, 5, 9, 16, 32}, few, [](int64_t) { return 10.; });
}

TEST(Crossover, WhereTheOtherWayBeginsToWin) {
  EXPECT_EQ(from(6), 2);
  EXPECT_EQ(from(3), 5);
  EXPECT_EQ(from(1), 16);
  EXPECT_EQ(from(0.1), 33) << "never";
}

TEST(Crossover, OneDisturbedTimeDoesNotMoveIt) {
  EXPECT_EQ(from(1.5, 32, 1), 9);
  EXPECT_EQ(from(1.5, 2, 1000), 9);
}

}  // namespace
}  // namespace ef::cuda
