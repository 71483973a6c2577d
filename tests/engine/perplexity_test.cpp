// Perplexity against a softmax in double over logits that were asked for one token at a time.
#include "expertflow/engine/perplexity.h"

#include <gtest/gtest.h>

#include "tests/engine/model_rig.h"

namespace ef::testing {
namespace {

class PerplexityTest : public ::testing::Test {
 protected:
  const std::vector<TokenId> tokens = goldens("qwen2_moe").back().ids;  // 130
  std::unique_ptr<Engine> engine = engine_of("qwen2_moe");

  // Mean of -log p(token i + 1 | window up to i) over the scored tokens, and how many.
  std::pair<double, int64_t> by_hand(int64_t window, int64_t stride, int64_t first, int64_t windows) const {
    const auto other = engine_of("qwen2_moe", small_engine("50%"));
    double sum = 0;
    int64_t scored = 0;
    for (int64_t w = 0; w < windows; ++w) {
      Sequence sequence(*other, window);
      for (int64_t i = 0; i + 1 < window; ++i) {
        const auto logits = sequence.feed(std::span(tokens).subspan(size_t(w * stride + i), 1));
        if (i + 1 < first) continue;
        double total = 0;
        for (const float l : logits) total += std::exp(double(l));
        sum -= std::log(std::exp(double(logits[size_t(tokens[size_t(w * stride + i + 1)])])) / total);
        ++scored;
      }
    }
    return {sum / double(scored), scored};
  }
  void expect(const PerplexityOptions& o, int64_t stride, int64_t first, int64_t windows) {
    const PerplexityResult r = perplexity(*engine, tokens, o);
    const auto [mean, scored] = by_hand(o.window, stride, first, windows);
    EXPECT_EQ(r.windows, windows);
    EXPECT_EQ(r.scored, scored);
    EXPECT_NEAR(r.cross_entropy(), mean, 1e-9);
    EXPECT_NEAR(r.perplexity(), std::exp(mean), 1e-6);
  }
};

TEST_F(PerplexityTest, HalfAWindowIsContext) {
  PerplexityOptions o;
  o.window = 32;
  expect(o, 32, 17, 4);  // 130 / 32
  EXPECT_EQ(perplexity(*engine, tokens, o).scored, 4 * 15);
}

TEST_F(PerplexityTest, EveryTokenOverlapsAndLimits) {
  PerplexityOptions o;
  o.window = 33, o.stride = 32, o.first_scored = 1;
  expect(o, 32, 1, 4);  // (130 - 33) / 32 + 1
  o.max_windows = 2;
  expect(o, 32, 1, 2);
  o.window = 130, o.stride = 0, o.first_scored = 129, o.max_windows = 0;
  expect(o, 130, 129, 1);  // one token
  o.first_scored = 0;      // the first token has nothing before it
  expect(o, 130, 1, 1);
}

// However few rows a step may take or give logits of.
TEST_F(PerplexityTest, StepsDoNotMatter) {
  PerplexityOptions o;
  o.window = 50;
  const double expected = perplexity(*engine, tokens, o).nll_sum;
  for (const auto& [ubatch, rows] : {std::pair{7, 3}, {256, 16}, {1, 1}, {3, 100}}) {
    EngineOptions options = small_engine("min");
    options.ubatch = ubatch, options.max_logit_rows = rows;
    EXPECT_EQ(perplexity(*engine_of("qwen2_moe", options), tokens, o).nll_sum, expected) << ubatch << " " << rows;
  }
}

TEST_F(PerplexityTest, StandardErrorByHand) {
  PerplexityResult r;
  // Values 1, 2, 3: mean 2, variance 2/3; the error of the mean over n - 1 = 2.
  r.nll_sum = 6, r.nll_square_sum = 14, r.scored = 3;
  EXPECT_NEAR(r.standard_error(), std::exp(2.) * std::sqrt(2. / 3 / 2), 1e-12);
  EXPECT_EQ(PerplexityResult().standard_error(), 0);
}

TEST_F(PerplexityTest, EndsEarlyWhenAsked) {
  PerplexityOptions o;
  o.window = 32;
  std::vector<int64_t> seen;
  const auto r = perplexity(*engine, tokens, o, [&](const PerplexityResult& so_far, int64_t windows) {
    EXPECT_EQ(windows, 4);
    seen.push_back(so_far.windows);
    return so_far.windows < 2;
  });
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(r.windows, 2);
}

TEST_F(PerplexityTest, WhatCannotBeScoredIsRefused) {
  const auto with = [&](int64_t window, int64_t first = -1) {
    PerplexityOptions o;
    o.window = window, o.first_scored = first;
    return perplexity(*engine, tokens, o);
  };
  EXPECT_THROW(with(131), RequestError);  // longer than the text
  EXPECT_THROW(with(300), ConfigError);   // longer than the context
  EXPECT_THROW(with(1), ConfigError);
  EXPECT_THROW(with(16, 16), ConfigError);
  EXPECT_EQ(with(16).windows, 8);  // no sequence was left open
}

}  // namespace
}  // namespace ef::testing
