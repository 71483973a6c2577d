// Candidates and odds, worked out by hand.
#include "expertflow/predict/candidates.h"

#include <gtest/gtest.h>

#include <cmath>

#include "expertflow/predict/router_odds.h"

namespace ef {
namespace {

std::vector<ExpertId> ids(std::span<const Candidate> candidates) {
  std::vector<ExpertId> all;
  for (const Candidate& c : candidates) all.push_back(c.key.expert);
  return all;
}

TEST(CandidateRanking, TheFewestThatCoverTheMass) {
  CandidateRanking ranking;
  const std::vector<float> p{0.1f, 0.5f, 0.05f, 0.35f};  // adds up to 1
  EXPECT_EQ(ids(ranking.rank(3, p, 1, {.mass = 0.45f})), (std::vector<ExpertId>{1}));
  EXPECT_EQ(ids(ranking.rank(3, p, 1, {.mass = 0.8f})), (std::vector<ExpertId>{1, 3}));
  EXPECT_EQ(ids(ranking.rank(3, p, 1, {.mass = 0.9f})), (std::vector<ExpertId>{1, 3, 0}));
  EXPECT_EQ(ids(ranking.rank(3, p, 1, {.mass = 1})), (std::vector<ExpertId>{1, 3, 0, 2}));
  EXPECT_EQ(ranking.rank(3, p, 1, {.mass = 0.5f})[0].key, (ExpertKey{3, 1}));
}

TEST(CandidateRanking, BoundsHoldWhateverTheMass) {
  CandidateRanking ranking;
  const std::vector<float> p{0.1f, 0.5f, 0.05f, 0.35f};
  EXPECT_EQ(ids(ranking.rank(0, p, 1, {.mass = 1, .most = 2})), (std::vector<ExpertId>{1, 3}));
  EXPECT_EQ(ids(ranking.rank(0, p, 1, {.mass = 0, .least = 3})), (std::vector<ExpertId>{1, 3, 0}));
  EXPECT_EQ(ids(ranking.rank(0, p, 1, {.mass = 1, .least_probability = 0.2f})), (std::vector<ExpertId>{1, 3}));
  EXPECT_EQ(ids(ranking.rank(0, p, 1, {.mass = 1, .least_probability = 0.9f, .least = 1})), (std::vector<ExpertId>{1}));
  EXPECT_TRUE(ranking.rank(0, p, 1, {.mass = 0}).empty());
  EXPECT_EQ(ids(ranking.rank(0, p, 1, {.mass = 0, .least = 9, .most = 1})), (std::vector<ExpertId>{1}));
}

TEST(CandidateRanking, RowsAreJoinedAsIndependent) {
  CandidateRanking ranking;
  // Expert 0: 0.5 and 0.5 -> 0.75; expert 1: 0.7 and 0 -> 0.7; expert 2: 0.1 and 0.2 -> 0.28.
  const std::vector<float> p{0.5f, 0.7f, 0.1f, 0.5f, 0.0f, 0.2f};
  const auto all = ranking.rank(0, p, 2, {.mass = 1});
  ASSERT_EQ(ids(all), (std::vector<ExpertId>{0, 1, 2}));
  EXPECT_NEAR(all[0].probability, 0.75, 1e-6);
  EXPECT_NEAR(all[1].probability, 0.7, 1e-6);
  EXPECT_NEAR(all[2].probability, 0.28, 1e-6);
}

TEST(CandidateRules, LayersMayDiffer) {
  CandidateRules rules;
  rules.all.most = 4;
  EXPECT_EQ(rules.of(7).most, 4);
  rules.layers = {{.most = 1}, {.most = 2}};
  EXPECT_EQ(rules.of(1).most, 2);
  EXPECT_EQ(rules.of(2).most, 4);
}

// Scores 3, 1, -1, -3: mean 0, deviation sqrt(5). With two chosen the edge is at 0.
TEST(RouterOdds, LogisticInDeviationsFromTheEdge) {
  RouterConfig router;
  router.experts = 4, router.top_k = 2;
  RouterOdds odds(router);
  const std::vector<float> logits{3, -1, 1, -3};
  const std::vector<int32_t> chosen{0, 2};
  std::vector<float> p(4);
  odds.row(logits.data(), nullptr, chosen.data(), 2.f, p.data());
  const double s = 2 / std::sqrt(5.0);
  EXPECT_NEAR(p[0], 1 / (1 + std::exp(-3 * s)), 1e-6);
  EXPECT_NEAR(p[2], 1 / (1 + std::exp(-s)), 1e-6);
  EXPECT_NEAR(p[1], 1 / (1 + std::exp(s)), 1e-6);
  EXPECT_NEAR(p[3], 1 / (1 + std::exp(3 * s)), 1e-6);
}

// Groups may leave out the best score; equal scores fall to the lower id; NaN is no reason to fail.
TEST(RouterOdds, TheChosenAreAboveOneHalfAndNothingElseIs) {
  RouterConfig router;
  router.experts = 4, router.top_k = 2;
  RouterOdds odds(router);
  std::vector<float> p(4);
  const std::vector<int32_t> chosen{1, 2};
  for (const std::vector<float>& logits :
       {std::vector<float>{9, 1, 2, 0}, {5, 5, 5, 5}, {NAN, 1, 2, NAN}, {INFINITY, 1, 2, -INFINITY}}) {
    odds.row(logits.data(), nullptr, chosen.data(), 3.f, p.data());
    for (int e = 0; e < 4; ++e) {
      EXPECT_EQ(p[size_t(e)] > 0.5f, e == 1 || e == 2) << e;
      EXPECT_TRUE(p[size_t(e)] >= 0 && p[size_t(e)] <= 1) << e;
    }
  }
}

}  // namespace
}  // namespace ef
