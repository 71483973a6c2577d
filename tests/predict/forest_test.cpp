// A forest on a rule that is known.
#include "expertflow/predict/forest.h"

#include <gtest/gtest.h>

#include <random>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

// Chosen where feature 0 is above 0.5 and feature 2 below 0.3.
struct Known {
  std::vector<ForestRow> rows;
  std::vector<float> chosen;
};
Known known(size_t n) {
  Known k;
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform;
  for (size_t i = 0; i < n; ++i) {
    ForestRow row{};
    for (float& v : row) v = uniform(random);
    k.rows.push_back(row);
    k.chosen.push_back(row[0] > 0.5f && row[2] < 0.3f ? 1.f : 0.f);
  }
  return k;
}

TEST(Forest, LearnsARule) {
  const Known k = known(4000);
  ThreadPool pool(2);
  const Forest forest = Forest::train(k.rows, k.chosen, pool, 1);
  EXPECT_GT(forest.predict({0.9f, 0.5f, 0.1f, 0.5f, 0.5f, 0.5f, 0.5f}), 0.9f);
  EXPECT_LT(forest.predict({0.9f, 0.5f, 0.8f, 0.5f, 0.5f, 0.5f, 0.5f}), 0.1f);
  EXPECT_LT(forest.predict({0.1f, 0.5f, 0.1f, 0.5f, 0.5f, 0.5f, 0.5f}), 0.1f);
}

TEST(Forest, ThreadsDoNotMatterAndTensorsComeBack) {
  const Known k = known(600);
  ThreadPool one(1), three(3);
  const TrainedTensor a = Forest::train(k.rows, k.chosen, one, 1).tensor();
  EXPECT_EQ(a.values, Forest::train(k.rows, k.chosen, three, 1).tensor().values);
  const Forest back = Forest::from(a, "test");
  EXPECT_EQ(back.tensor().values, a.values);
  EXPECT_LE(back.nodes(), size_t(Forest::kTrees) * ((2u << Forest::kDepth) - 1));
}

TEST(Forest, WhatIsNoForestIsRefused) {
  // A root whose children are nodes 1 and 2, leaves.
  const TrainedTensor good{3, 4, {0, 0.5f, 1, 1, -1, 0.25f, 0, 0, -1, 0.75f, 0, 0}};
  EXPECT_FLOAT_EQ(Forest::from(good, "f").predict({0.4f}), 0.25f);
  EXPECT_FLOAT_EQ(Forest::from(good, "f").predict({0.5f}), 0.75f);
  for (const auto& [at, value] : {std::pair{size_t(2), 0.f}, {size_t(2), 2.f}, {size_t(0), 7.f}, {size_t(3), 0.f}}) {
    TrainedTensor bad = good;
    bad.values[at] = value;  // its own child, a child that is not there, no such feature, no root
    EXPECT_THROW(Forest::from(bad, "f"), ModelError) << at << " " << value;
  }
}

}  // namespace
}  // namespace ef
