#include "expertflow/engine/expert_metrics.h"

#include <gtest/gtest.h>

#include "expertflow/engine/metrics_json.h"

namespace ef {
namespace {

TEST(ExpertMetrics, SharesAreThoseOfTheDefinitions) {
  // Two events of four experts: 3 of 4 among the four likeliest, and all four of them; 2 more candidates each.
  PredictionCounts c;
  c.events = 2, c.routed = 8, c.named_first = 7, c.named = 8, c.predicted = 12, c.exact = 1, c.half = 2;
  c.ready = 6, c.fetched = 7;
  EXPECT_DOUBLE_EQ(c.recall_at_k(), 0.875);
  EXPECT_DOUBLE_EQ(c.recall_at_m(), 1);
  EXPECT_DOUBLE_EQ(c.exact_set(), 0.5);
  EXPECT_DOUBLE_EQ(c.at_least_half(), 1);
  EXPECT_DOUBLE_EQ(c.ready_recall(), 0.75);
  EXPECT_DOUBLE_EQ(c.fetch_rate(), 0.875);
  EXPECT_DOUBLE_EQ(c.good_prediction(), 0.875);
  EXPECT_DOUBLE_EQ(c.candidates(), 6);
  PredictionCounts twice = c;
  twice += c;
  EXPECT_DOUBLE_EQ((twice - c).recall_at_k(), 0.875);
  EXPECT_EQ(PredictionCounts().recall_at_k(), 0);
}

TEST(ExpertMetrics, PercentilesAreByNearestRank) {
  const std::vector<double> v = {15, 20, 35, 40, 50};
  EXPECT_EQ(percentile(v, 0.30), 20);
  EXPECT_EQ(percentile(v, 0.40), 20);
  EXPECT_EQ(percentile(v, 0.50), 35);
  EXPECT_EQ(percentile(v, 1.00), 50);
  EXPECT_EQ(percentile({}, 0.5), std::nullopt);
}

MetricHealth find(const std::vector<MetricHealth>& all, std::string_view name) {
  for (const auto& one : all)
    if (one.name == name) return one;
  ADD_FAILURE() << name;
  return {};
}

TEST(ExpertMetrics, AdviceComesWhereAFigureIsOutOfRange) {
  ExpertMetrics m;
  m.hits = 600, m.misses = 400;
  m.prediction_hit_rate = 0.6;
  m.expert_swap_rate = 0.4;
  m.cache_utilization = 0.99;
  m.p50_latency = 0.010, m.p99_latency = 0.050;
  const auto all = health_of(m);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_FALSE(find(all, "prediction_hit_rate").healthy);
  EXPECT_NE(find(all, "prediction_hit_rate").advice.find("train-predictor"), std::string::npos);
  EXPECT_NE(find(all, "expert_swap_rate").advice.find("--expert-memory"), std::string::npos);
  EXPECT_TRUE(find(all, "token_defer_rate").healthy) << "nobody defers tokens";
  EXPECT_TRUE(find(all, "cache_utilization").healthy);
  EXPECT_TRUE(find(all, "cache_utilization").advice.empty());
  EXPECT_FALSE(find(all, "p99_latency").healthy) << "five times the usual";
}

// Every row, wherever it is out of range: what it names must be able to help there.
TEST(ExpertMetrics, AdviceNamesNothingThatCannotHelp) {
  ExpertMetrics m;
  m.hits = 600, m.misses = 400;
  m.prediction_hit_rate = 0.1;
  m.expert_swap_rate = 0.9;
  m.token_defer_rate = 0.9;
  m.cache_utilization = 0.1;
  m.p50_latency = 0.010, m.p99_latency = 0.050;
  for (const auto& metric : health_of(m)) EXPECT_FALSE(metric.healthy) << metric.name;
  m.distance = 1;
  EXPECT_EQ(find(health_of(m), "prediction_hit_rate").advice.find("--prediction-horizon"), std::string::npos);
  m.reads_ahead = false;  // nobody acts on a guess
  EXPECT_TRUE(find(health_of(m), "prediction_hit_rate").healthy);
  EXPECT_FALSE(find(health_of(m), "p99_latency").healthy);
  m.reads_ahead = true, m.all_resident = true;
  const auto full = health_of(m);
  EXPECT_TRUE(find(full, "prediction_hit_rate").healthy);
  EXPECT_TRUE(find(full, "expert_swap_rate").healthy);
  EXPECT_FALSE(find(full, "p99_latency").healthy);
  for (const auto& metric : full)
    for (const char* useless : {"more memory", "--expert-memory", "quantize", "warm", "predict", "read from", "cold"})
      EXPECT_EQ(metric.advice.find(useless), std::string::npos) << metric.name << ": " << metric.advice;
}

TEST(ExpertMetrics, LittleIsNotJudged) {
  ExpertMetrics m;
  m.hits = 10, m.misses = 90;
  m.expert_swap_rate = 0.9;
  for (const auto& metric : health_of(m)) EXPECT_TRUE(metric.healthy) << metric.name;
}

// Each change of the distance with its reason, the latest six.
TEST(ExpertMetrics, TheTextSaysWhyTheDistanceChanged) {
  ExpertStats stats;
  stats.foresight.emplace();
  for (int i = 0; i < 7; ++i)
    stats.foresight->controller.changes.push_back({uint64_t(100 * i), i, i + 1, 3, "reason " + std::to_string(i)});
  std::vector<std::string> found;
  for (const std::string& line : metrics_lines({}, stats))
    if (line.rfind("distance ", 0) == 0) found.push_back(line);
  ASSERT_EQ(found.size(), 6u);
  EXPECT_EQ(found[0], "distance 1 -> 2 at token 100 (the formula says 3): reason 1");
  EXPECT_EQ(found[5], "distance 6 -> 7 at token 600 (the formula says 3): reason 6");
}

}  // namespace
}  // namespace ef
