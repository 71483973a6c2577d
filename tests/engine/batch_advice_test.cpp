#include "expertflow/engine/batch_advice.h"

#include <gtest/gtest.h>

namespace ef {
namespace {

BatchFacts facts(double share) {
  BatchFacts f;
  f.experts = 32, f.top_k = 4;
  f.expert_total = 32000, f.expert_budget = uint64_t(share * 32000);
  f.kv_tokens = 40960, f.sequence_tokens = 4096;
  f.parallel = 1;
  return f;
}

// Of 8 balls drawn 2 at a time: 8 (1 - (3/4)^2) = 3.5 distinct after two draws, 4.625 after three.
TEST(BatchAdvice, ExpectedDistinctExpertsAreThoseOfIndependentDraws) {
  EXPECT_DOUBLE_EQ(expected_distinct_experts(8, 2, 1), 2);
  EXPECT_DOUBLE_EQ(expected_distinct_experts(8, 2, 2), 3.5);
  EXPECT_DOUBLE_EQ(expected_distinct_experts(8, 2, 3), 4.625);
  EXPECT_DOUBLE_EQ(expected_distinct_experts(8, 8, 1), 8);
  EXPECT_DOUBLE_EQ(expected_distinct_experts(8, 2, 0), 0);
}

// Top-4 of 32: one row 4, two 7.5, three 10.5625, four 13.2421875, five 15.58691...
TEST(BatchAdvice, TheFastTierBoundsTheBatch) {
  EXPECT_EQ(batch_advice(facts(0.25)).expert_sequences, 2);   // 8 a layer
  EXPECT_EQ(batch_advice(facts(0.40)).expert_sequences, 3);   // 12.8
  EXPECT_EQ(batch_advice(facts(0.415)).expert_sequences, 4);  // 13.28
  EXPECT_EQ(batch_advice(facts(0.125)).expert_sequences, 1);  // 4
  EXPECT_EQ(batch_advice(facts(0.124)).expert_sequences, 0);
  EXPECT_EQ(batch_advice(facts(0.40)).sequences, 3);
  EXPECT_NE(batch_advice(facts(0.40)).text.find("40 % of the experts) what 3 tokens"), std::string::npos);
}

TEST(BatchAdvice, TheKvCacheBoundsItWhereExpertsDoNot) {
  EXPECT_EQ(batch_advice(facts(1)).expert_sequences, std::nullopt);
  EXPECT_EQ(batch_advice(facts(1)).sequences, 10);
  // Where not even one token's experts fit, copies are shared: the KV cache alone counts.
  EXPECT_EQ(batch_advice(facts(0.1)).sequences, 10);
  EXPECT_NE(batch_advice(facts(0.1)).text.find("--expert-memory"), std::string::npos);
  BatchFacts small = facts(1);
  small.kv_tokens = 1000;
  EXPECT_EQ(batch_advice(small).kv_sequences, 0);
  EXPECT_EQ(batch_advice(small).sequences, 1);
}

TEST(BatchAdvice, DenseModelsHaveNoExperts) {
  BatchFacts f = facts(0);
  f.experts = f.top_k = 0, f.expert_total = 0;
  EXPECT_EQ(batch_advice(f).expert_sequences, std::nullopt);
  EXPECT_EQ(batch_advice(f).sequences, 10);
}

TEST(BatchAdvice, SaysWhatWasAskedForWhereThatIsMore) {
  BatchFacts f = facts(0.25);
  EXPECT_EQ(batch_advice(f).text.find("--parallel"), std::string::npos);
  f.parallel = 8;
  EXPECT_NE(batch_advice(f).text.find("(--parallel is 8)"), std::string::npos);
}

}  // namespace
}  // namespace ef
