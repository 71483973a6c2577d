#include "expertflow/engine/prefetch_options.h"

#include <gtest/gtest.h>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

Config twelve_layers() {
  Config c;
  c.layers.resize(12);
  c.router.experts = 32;
  c.router.top_k = 4;
  return c;
}

CandidateRules rules(const std::string& json, int topk = 0) {
  EngineOptions o;
  o.layer_wise_config = json;
  o.prediction_topk = topk;
  return candidate_rules(o, twelve_layers());
}

TEST(PrefetchOptions, CandidatesGoByConfidenceUpToTwiceTheChoice) {
  const CandidateRules r = rules("");
  EXPECT_EQ(r.of(5).most, 8);
  EXPECT_EQ(r.of(5).least, 4);
  EXPECT_EQ(rules("", 3).of(5).most, 3);
  EXPECT_EQ(rules("", 3).of(5).least, 3);
}

TEST(PrefetchOptions, LayersMayDiffer) {
  const CandidateRules r = rules(
      R"({"default": {"mass": 0.8}, "layers": {"0": {"topk": 12}, "3-5": {"mass": 0.5, "least_probability": 0.25}}})");
  EXPECT_FLOAT_EQ(r.of(0).mass, 0.8f);
  EXPECT_EQ(r.of(0).most, 12);
  EXPECT_FLOAT_EQ(r.of(2).mass, 0.8f);
  for (const LayerId l : {3, 4, 5}) {
    EXPECT_FLOAT_EQ(r.of(l).mass, 0.5f);
    EXPECT_FLOAT_EQ(r.of(l).least_probability, 0.25f);
    EXPECT_EQ(r.of(l).most, 8);
  }
  EXPECT_FLOAT_EQ(r.of(6).least_probability, 0);
}

TEST(PrefetchOptions, LayersMayStandForThemselves) {
  const CandidateRules r = rules(R"({"0": {"prediction_topk": 2}, "3-5": {"mass": 0.5}, "*": {"prediction_topk": 6}})");
  EXPECT_EQ(r.of(0).most, 2);
  EXPECT_EQ(r.of(1).most, 6);
  EXPECT_FLOAT_EQ(r.of(4).mass, 0.5f);
  EXPECT_EQ(r.of(4).most, 6) << "what is said of all holds, wherever it stands";
}

TEST(PrefetchOptions, ALayerMayBeLeftAlone) {
  const CandidateRules r = rules(R"({"layers": {"1": {"topk": 0}}})");
  std::vector<float> probabilities(32, 0.9f);
  CandidateRanking ranking;
  EXPECT_TRUE(ranking.rank(1, probabilities, 1, r.of(1)).empty());
  EXPECT_FALSE(ranking.rank(2, probabilities, 1, r.of(2)).empty());
}

TEST(PrefetchOptions, MistakesNameTheirPlace) {
  const auto refusal = [](const std::string& json) -> std::string {
    try {
      rules(json);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(R"({"layers": {"12": {}}})"),
            "layer-wise-config: layers: expected a layer (3) or a range (3-11) below 12, found \"12\"");
  EXPECT_EQ(refusal(R"({"layers": {"5-3": {}}})"),
            "layer-wise-config: layers: expected a layer (3) or a range (3-11) below 12, found \"5-3\"");
  EXPECT_EQ(refusal(R"({"layers": {"3": {"mass": 1.5}}})"),
            "layer-wise-config: layers: 3: mass: expected a share above 0 and at most 1, found 1.5");
  EXPECT_EQ(refusal(R"({"default": {"topk": 33}})"),
            "layer-wise-config: default: topk: expected a whole number up to the layer's experts, found 33");
  EXPECT_EQ(refusal(R"({"default": {"k": 3}})"),
            "layer-wise-config: default: expected mass, least_probability or prediction_topk, found \"k\"");
  EXPECT_EQ(refusal(R"({"layer": {}})"), "layer-wise-config: expected default, layers or a layer, found \"layer\"");
  EXPECT_NE(refusal("{").find("expected a JSON object"), std::string::npos);
  EXPECT_NE(refusal("/no/such/file").find("/no/such/file"), std::string::npos);
}

TEST(PrefetchOptions, HorizonsAndLimits) {
  EXPECT_EQ(parse_horizon("auto"), std::nullopt);
  EXPECT_EQ(parse_horizon("3"), 3);
  EXPECT_THROW(parse_horizon("3x"), ConfigError);
  EXPECT_THROW(parse_horizon("-1"), ConfigError);
  EXPECT_EQ(parse_io_limit("none"), 0);
  EXPECT_EQ(parse_io_limit("500MB"), 5e8);
  EXPECT_THROW(parse_io_limit("0"), ConfigError);
  EXPECT_THROW(parse_io_limit("min"), ConfigError);
}

}  // namespace
}  // namespace ef
