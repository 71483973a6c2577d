// Expected values by hand: the logits are logarithms of small fractions.
#include "expertflow/text/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ef {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

SamplerConfig plain() {
  SamplerConfig c;
  c.temperature = 1;
  c.top_k = 0;
  c.top_p = 1;
  c.min_p = 0;
  c.penalty_window = -1;
  c.seed = 1;
  return c;
}

std::vector<float> logs(std::initializer_list<double> weights) {
  std::vector<float> out;
  for (double w : weights) out.push_back(float(std::log(w)));
  return out;
}

void expect_choices(const SamplerConfig& c, const std::vector<float>& logits, const std::vector<TokenId>& history,
                    const std::vector<std::pair<TokenId, double>>& wanted) {
  const auto got = Sampler(c, int64_t(logits.size())).probabilities(logits, history);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, wanted[i].first);
    EXPECT_NEAR(got[i].probability, wanted[i].second, 1e-6) << "token " << got[i].token;
  }
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const RequestError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Sampler, PlainSoftmax) { expect_choices(plain(), logs({1, 2, 5}), {}, {{0, 0.125}, {1, 0.25}, {2, 0.625}}); }

TEST(Sampler, Temperature) {
  SamplerConfig c = plain();
  c.temperature = 0.5f;  // squares of the weights 1, 2, 5
  expect_choices(c, logs({1, 2, 5}), {}, {{0, 1 / 30.0}, {1, 4 / 30.0}, {2, 25 / 30.0}});
  c.temperature = 2;  // square roots of 1, 4, 9
  expect_choices(c, logs({1, 4, 9}), {}, {{0, 1 / 6.0}, {1, 2 / 6.0}, {2, 3 / 6.0}});
}

TEST(Sampler, TopK) {
  SamplerConfig c = plain();
  c.top_k = 2;
  expect_choices(c, logs({3, 1, 5, 2}), {}, {{0, 3 / 8.0}, {2, 5 / 8.0}});
  c.top_k = 2;  // ties go to the lower ids
  expect_choices(c, logs({1, 1, 1, 1}), {}, {{0, 0.5}, {1, 0.5}});
  c.top_k = 99;
  expect_choices(c, logs({1, 3}), {}, {{0, 0.25}, {1, 0.75}});
}

TEST(Sampler, TopP) {
  SamplerConfig c = plain();
  c.top_p = 0.75f;  // 5 of 10 are too few, 5 + 3 are enough
  expect_choices(c, logs({3, 1, 5, 1}), {}, {{0, 3 / 8.0}, {2, 5 / 8.0}});
  c.top_p = 0;  // one token stays
  expect_choices(c, logs({3, 1, 5, 1}), {}, {{2, 1.0}});
  c.top_p = 0.45f;
  expect_choices(c, logs({3, 1, 5, 1}), {}, {{2, 1.0}});
}

TEST(Sampler, TopPOverManyTokens) {
  // 2000 equal tokens: half of the probability is exactly the first thousand ids, past several sorted pieces.
  SamplerConfig c = plain();
  c.top_p = 0.5f;
  const std::vector<float> logits(2000, 0.25f);
  const auto got = Sampler(c, 2000).probabilities(logits, {});
  ASSERT_EQ(got.size(), 1000u);
  EXPECT_EQ(got.front().token, 0);
  EXPECT_EQ(got.back().token, 999);
  EXPECT_NEAR(got.back().probability, 0.001, 1e-12);
}

TEST(Sampler, TopPCountsWithinTopK) {
  SamplerConfig c = plain();
  c.top_k = 3;
  c.top_p = 0.5f;  // of 4 + 3 + 3, the 4 are too few
  expect_choices(c, logs({4, 3, 3, 2, 2, 2}), {}, {{0, 4 / 7.0}, {1, 3 / 7.0}});
}

TEST(Sampler, MinP) {
  SamplerConfig c = plain();
  c.min_p = 0.3f;  // at least 3 of 10
  expect_choices(c, logs({10, 2, 4, 2.9}), {}, {{0, 10 / 14.0}, {2, 4 / 14.0}});
  c.min_p = 1;
  expect_choices(c, logs({10, 2, 10}), {}, {{0, 0.5}, {2, 0.5}});
}

TEST(Sampler, TemperatureComesAfterTheFilters) {
  SamplerConfig c = plain();
  c.temperature = 2;
  c.top_p = 0.59f;  // weights 9, 4, 1, 1: 9 of 15 hold 0.59; at temperature 2 it were 3 of 7
  expect_choices(c, logs({4, 9, 1, 1}), {}, {{1, 1.0}});
}

TEST(Sampler, RepetitionPenalty) {
  SamplerConfig c = plain();
  c.repetition_penalty = 2;
  const float two = float(std::log(2.0));
  // token 0: 2 log 2 halves to log 2; token 1: -log 2 doubles to -2 log 2; token 2 was not seen
  expect_choices(c, {2 * two, -two, 0}, {0, 1, 0}, {{0, 2 / 3.25}, {1, 0.25 / 3.25}, {2, 1 / 3.25}});
}

TEST(Sampler, PresenceAndFrequencyPenalty) {
  SamplerConfig c = plain();
  c.presence_penalty = float(std::log(2.0));
  c.frequency_penalty = float(std::log(1.5));
  // token 0 seen twice: 9 / 2 / 2.25 = 2; token 1 once: 6 / 2 / 1.5 = 2; token 2: 4
  expect_choices(c, logs({9, 6, 4}), {0, 1, 0}, {{0, 0.25}, {1, 0.25}, {2, 0.5}});
}

TEST(Sampler, PenaltyWindow) {
  SamplerConfig c = plain();
  c.presence_penalty = float(std::log(2.0));
  c.penalty_window = 1;  // the newest token alone
  expect_choices(c, logs({4, 4}), {0, 1}, {{0, 2 / 3.0}, {1, 1 / 3.0}});
  c.penalty_window = 0;
  expect_choices(c, logs({4, 4}), {0, 1}, {{0, 0.5}, {1, 0.5}});
  c.penalty_window = -1;  // tokens outside of the vocabulary are no harm
  expect_choices(c, logs({4, 4}), {0, -1, 77}, {{0, 1 / 3.0}, {1, 2 / 3.0}});
}

TEST(Sampler, LogitBias) {
  SamplerConfig c = plain();
  c.logit_bias = {{0, float(std::log(3.0))}, {1, -kInf}};
  expect_choices(c, logs({1, 100, 5}), {}, {{0, 3 / 8.0}, {2, 5 / 8.0}});
}

TEST(Sampler, GreedyTakesTheLowestOfEqualIds) {
  SamplerConfig c = plain();
  c.temperature = 0;
  Sampler sampler(c, 4);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 2}, {}).token, 1);
  c.temperature = -1;
  c.logit_bias = {{1, -kInf}};
  EXPECT_EQ(Sampler(c, 4).sample(std::vector<float>{1, 3, 3, 2}, {}).token, 2);
  c.repetition_penalty = 4;
  EXPECT_EQ(Sampler(c, 4).sample(std::vector<float>{1, 3, 3, 2}, std::vector<TokenId>{2}).token, 3);
}

TEST(Sampler, DrawsAreThoseOfTheDocumentedGenerator) {
  // 10000th output of mt19937_64 with its default seed: 9981545732273789042 (C++ standard, [rand.predef]).
  SamplerConfig c = plain();
  c.seed = 5489;
  Sampler sampler(c, 64);
  const std::vector<float> logits(64, 1.0f);
  TokenId last = -1;
  for (int i = 0; i < 10000; ++i) last = sampler.sample(logits, {}).token;
  EXPECT_EQ(last, TokenId(9981545732273789042ull >> 58));
}

TEST(Sampler, SameSeedSameTokens) {
  const auto run = [](std::optional<uint64_t> seed) {
    SamplerConfig c = plain();
    c.seed = seed;
    Sampler sampler(c, 1000);
    std::vector<TokenId> tokens;
    const std::vector<float> logits(1000, 0.0f);
    for (int i = 0; i < 32; ++i) tokens.push_back(sampler.sample(logits, tokens).token);
    return tokens;
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
  EXPECT_NE(run({}), run({}));  // equal with probability 1e-96
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  // The draws of a fixed seed over {1/8, 0, 7/8}, by the same rule computed here.
  SamplerConfig c = plain();
  c.seed = 99;
  Sampler sampler(c, 3);
  std::mt19937_64 random(99);
  const std::vector<float> logits = {0.0f, -kInf, float(std::log(7.0))};
  int zeros = 0;
  for (int i = 0; i < 800; ++i) {
    const bool low = double(random() >> 11) / 9007199254740992.0 < 0.125;
    const TokenId token = sampler.sample(logits, {}).token;
    EXPECT_EQ(token, low ? 0 : 2) << i;
    zeros += token == 0 ? 1 : 0;
  }
  EXPECT_GT(zeros, 60);
  EXPECT_LT(zeros, 140);
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  SamplerConfig c = plain();
  c.top_k = 1;
  c.temperature = 0.1f;
  c.logit_bias = {{2, -kInf}};
  const auto got = Sampler(c, 4).sample(logs({2, 1, 4, 1}), {}, 3);
  EXPECT_EQ(got.token, 0);
  EXPECT_NEAR(got.logprob, std::log(0.25), 1e-6);
  ASSERT_EQ(got.top.size(), 3u);
  EXPECT_EQ(got.top[0].token, 2);
  EXPECT_NEAR(got.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(got.top[1].token, 0);
  EXPECT_EQ(got.top[2].token, 1);  // tie with 3
  EXPECT_NEAR(got.top[2].logprob, std::log(0.125), 1e-6);
}

TEST(Sampler, E8_LogprobsHaveAFiniteFloor) {
  SamplerConfig c = plain();
  c.temperature = 0;
  const auto got = Sampler(c, 3).sample(std::vector<float>{0, -kInf, -1e30f}, {}, 10);
  ASSERT_EQ(got.top.size(), 3u);
  EXPECT_EQ(got.logprob, 0.0f);
  EXPECT_EQ(got.top[1].logprob, kLogprobFloor);
  EXPECT_EQ(got.top[2].logprob, kLogprobFloor);
}

TEST(Sampler, E20_LogitsThatAreNotFiniteFailTheRequest) {
  Sampler sampler(plain(), 3);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(error_of([&] {
              sampler.sample(std::vector<float>{0, nan, 0}, {});
            }),
            "the model's logits are not finite: token 1 has nan");
  EXPECT_EQ(error_of([&] {
              sampler.sample(std::vector<float>{0, 0, kInf}, {});
            }),
            "the model's logits are not finite: token 2 has inf");
  EXPECT_EQ(error_of([&] {
              sampler.sample(std::vector<float>{-kInf, -kInf, -kInf}, {});
            }),
            "the model's logits are not finite: all 3 are -inf");
  EXPECT_EQ(sampler.sample(std::vector<float>{-kInf, 0, -kInf}, {}).token, 1);
  EXPECT_EQ(error_of([&] { sampler.sample(std::vector<float>{0, 0}, {}); }), "expected 3 logits, found 2");
}

TEST(Sampler, BansOfEverythingAreAnError) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplerConfig c = plain();
    c.temperature = temperature;
    c.logit_bias = {{0, -kInf}, {1, -kInf}};
    EXPECT_EQ(error_of([&] { Sampler(c, 2).sample(std::vector<float>{1, 2}, {}); }), "logit_bias excludes every token");
  }
}

TEST(Sampler, ConfigErrorsNameFieldAndRange) {
  const auto problem = [](auto change) {
    SamplerConfig c;
    change(c);
    return c.problem();
  };
  EXPECT_EQ(SamplerConfig().problem(), "");
  EXPECT_EQ(problem([](auto& c) { c.temperature = NAN; }), "temperature: expected at most 100, found nan");
  EXPECT_EQ(problem([](auto& c) { c.top_p = 1.5f; }), "top_p: expected 0 to 1, found 1.5");
  EXPECT_EQ(problem([](auto& c) { c.min_p = -0.5f; }), "min_p: expected 0 to 1, found -0.5");
  EXPECT_EQ(problem([](auto& c) { c.repetition_penalty = 0; }),
            "repetition_penalty: expected above 0, at most 100, found 0");
  EXPECT_EQ(problem([](auto& c) { c.presence_penalty = 3; }), "presence_penalty: expected -2 to 2, found 3");
  EXPECT_EQ(problem([](auto& c) { c.frequency_penalty = -3; }), "frequency_penalty: expected -2 to 2, found -3");
  EXPECT_EQ(problem([](auto& c) { c.penalty_window = -2; }), "penalty_window: expected -1 or more, found -2");
  EXPECT_EQ(problem([](auto& c) {
              c.logit_bias = {{-1, 0.f}};
            }),
            "logit_bias: expected token ids of 0 or more, found -1");
  EXPECT_EQ(problem([](auto& c) {
              c.logit_bias = {{5, NAN}};
            }),
            "logit_bias[5]: expected a number of at most 1e9, or -inf, found nan");
  EXPECT_EQ(problem([](auto& c) { c.top_k = -1; }), "");
  EXPECT_EQ(problem([](auto& c) { c.top_k = -2; }), "top_k: expected -1 or more, found -2");

  SamplerConfig c = plain();
  c.logit_bias = {{4, 1.f}};
  EXPECT_EQ(error_of([&] { Sampler(c, 4); }), "logit_bias: expected token ids of 0 to 3, found 4");
  c.logit_bias.clear();
  c.top_p = 2;
  EXPECT_THROW(c.validate<ConfigError>(), ConfigError);
  EXPECT_THROW(c.validate(), RequestError);
}

TEST(SampleTop, GivesTheTokensThatAllLogitsGive) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(5000);
  for (const bool equals : {false, true}) {
    for (float& l : logits) l = equals ? std::round(normal(random)) : normal(random);
    std::vector<TokenId> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](TokenId a, TokenId b) { return logits[size_t(a)] > logits[size_t(b)]; });
    for (const float temperature : {0.f, 0.7f, 2.f}) {
      SamplerConfig config;
      config.temperature = temperature;
      config.seed = 11;
      Sampler all(config, int64_t(logits.size())), top(config, int64_t(logits.size()));
      ASSERT_EQ(top.needs_top(), temperature == 0 ? 1 : 40);
      const std::vector<TokenId> ids(order.begin(), order.begin() + top.needs_top());
      std::vector<float> values;
      for (const TokenId id : ids) values.push_back(logits[size_t(id)]);
      for (int draw = 0; draw < 200; ++draw)
        ASSERT_EQ(top.sample_top(ids, values), all.sample(logits, {}).token) << "draw " << draw;
    }
  }
}

TEST(SampleTop, WhatChangesLogitsNeedsThemAll) {
  SamplerConfig config;
  EXPECT_EQ(Sampler(config, 100).needs_top(), 40);
  config.top_k = 0;
  EXPECT_EQ(Sampler(config, 100).needs_top(), 0);
  config.top_k = 10;
  config.logit_bias[3] = 1;
  EXPECT_EQ(Sampler(config, 100).needs_top(), 0);
  config.logit_bias.clear();
  config.presence_penalty = 1;
  EXPECT_EQ(Sampler(config, 100).needs_top(), 0);
}

TEST(SampleTop, RefusesLogitsThatAreNotFinite) {
  SamplerConfig config;
  Sampler sampler(config, 100);
  EXPECT_THROW(sampler.sample_top(std::vector<TokenId>{4}, std::vector<float>{NAN}), RequestError);
  EXPECT_THROW(sampler.sample_top(std::vector<TokenId>{4}, std::vector<float>{INFINITY}), RequestError);
  EXPECT_THROW(sampler.sample_top(std::vector<TokenId>{4}, std::vector<float>{-INFINITY}), RequestError);
}

}  // namespace
}  // namespace ef
