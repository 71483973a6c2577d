// verify() passes on models that are right, and finds each kind of fault that is put in.
#include "expertflow/engine/verify.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/engine/model_rig.h"

namespace ef::testing {
namespace {

VerifyOptions quick() {
  VerifyOptions o;
  o.engine = small_engine();
  o.engine.ctx_size = -1;
  o.prompts = make_prompts(256, 4, 1);
  o.tokens = 4;
  return o;
}

const Log& quiet() {
  static const Log log(LogLevel::kOff, nullptr);
  return log;
}

// Changes routing weights of some steps: what a wrong expert, slot or order of summation would do to the output.
class Disturber final : public StepObserver {
 public:
  using When = std::function<bool(const RoutingView&)>;
  Disturber(float factor, When when, bool every_row = false)
      : factor_(factor), when_(std::move(when)), every_row_(every_row) {}
  void on_routing(LayerId layer, const float*, const float*, const RoutingView& routing) override {
    if (layer != 1 || !when_(routing)) return;
    ++disturbed;
    float* weights = const_cast<float*>(routing.weights);
    for (int64_t row = every_row_ ? 0 : routing.tokens - 1; row < routing.tokens; ++row)
      weights[row * routing.top_k] *= factor_;
  }
  int disturbed = 0;

 private:
  float factor_;
  When when_;
  bool every_row_;
};

std::vector<std::string> failed(const VerifyReport& report) {
  std::vector<std::string> names;
  for (const auto& check : report.checks)
    if (!check.passed) {
      names.push_back(check.name);
      EXPECT_FALSE(check.detail.empty());
    }
  return names;
}

TEST(Verify, RightModelsPass) {
  std::vector<VerifyCheck> seen;
  const VerifyReport report =
      verify(hf_fixture("mixtral"), quick(), quiet(), [&](const VerifyCheck& c) { seen.push_back(c); });
  EXPECT_TRUE(report.passed());
  // Eight budgets and batches, each predictor that needs no file, auto, the reference ops.
  size_t plain = 0;
  for (const PredictorInfo& info : predictors()) plain += !info.trained;
  ASSERT_EQ(report.checks.size(), 8 + plain + 1 + 1);
  EXPECT_EQ(seen.size(), report.checks.size());
  for (size_t i = 0; i < 8 + plain + 1; ++i) {
    EXPECT_EQ(report.checks[i].tokens, 16) << report.checks[i].name;
    EXPECT_EQ(report.checks[i].equal_tokens, 16);
    EXPECT_EQ(report.checks[i].max_logit_difference, 0);
  }
  EXPECT_EQ(report.checks[2].hit_rate, 1) << "everything was resident by then";
  EXPECT_LT(report.checks[5].hit_rate, 1);
}

TEST(Verify, AFaultAtOneBudgetIsFound) {
  VerifyOptions o = quick();
  Disturber disturber(1 + 1e-5f, [](const auto&) { return true; });
  o.before_runs = [&](Engine& engine) {
    engine.set_observer(engine.options().expert_memory == "min" ? &disturber : nullptr);
  };
  const auto names = failed(verify(hf_fixture("mixtral"), o, quiet()));
  EXPECT_GT(disturber.disturbed, 0);
  // The three runs at the least budget, and none else.
  ASSERT_EQ(names.size(), 3u);
  for (const auto& name : names) EXPECT_TRUE(name.starts_with("budget min")) << name;
}

TEST(Verify, AFaultOfLongChunksIsFound) {
  VerifyOptions o = quick();
  Disturber disturber(1 + 1e-5f, [](const RoutingView& r) { return r.tokens == 7; });
  o.before_runs = [&](Engine& engine) { engine.set_observer(&disturber); };
  const auto names = failed(verify(hf_fixture("deepseek_v3"), o, quiet()));
  EXPECT_GT(disturber.disturbed, 0);
  ASSERT_FALSE(names.empty());
  EXPECT_NE(names[0].find("chunks of 7"), std::string::npos) << names[0];
}

TEST(Verify, AFaultOfTheFastOpsIsFoundByTheReferenceOps) {
  VerifyOptions o = quick();
  Disturber disturber(
      -3.f, [](const auto&) { return true; }, true);
  o.before_runs = [&](Engine& engine) {
    engine.set_observer(engine.options().isa == "reference" ? nullptr : &disturber);
  };
  const auto names = failed(verify(hf_fixture("mixtral"), o, quiet()));
  ASSERT_EQ(names.size(), 1u);
  EXPECT_NE(names[0].find("reference"), std::string::npos);
}

// Weights in blocks: one check more, and kernels of 8 bits that are off by more than rounding fail it alone.
TEST(Verify, RoundedActivationsAreHeldToABound) {
  VerifyOptions o = quick();
  const auto model = hf_fixture("gpt_oss-mxfp4-clamp");
  const VerifyReport report = verify(model, o, quiet());
  EXPECT_TRUE(report.passed());
  const size_t all = report.checks.size();
  EXPECT_GT(report.checks[all - 1].divergence, 0);
  EXPECT_LT(report.checks[all - 2].divergence, 1e-6);
  o.engine.activations = "f32";
  EXPECT_EQ(verify(model, o, quiet()).checks.size(), all - 1);
  o.engine.activations = "q8";
  Disturber disturber(
      -3.f, [](const auto&) { return true; }, true);
  o.before_runs = [&](Engine& engine) {
    engine.set_observer(engine.options().activations == "q8" && engine.options().isa != "reference" ? &disturber
                                                                                                    : nullptr);
  };
  const auto names = failed(verify(model, o, quiet()));
  ASSERT_EQ(names.size(), 1u);
  EXPECT_NE(names[0].find("8 bits"), std::string::npos) << names[0];
}

TEST(Verify, LogitsThatAreNoNumbersFail) {
  VerifyOptions o = quick();
  Disturber disturber(std::numeric_limits<float>::quiet_NaN(), [](const auto&) { return true; });
  o.before_runs = [&](Engine& engine) { engine.set_observer(&disturber); };
  // Nine, and one for every predictor that needs no training.
  EXPECT_EQ(failed(verify(hf_fixture("mixtral"), o, quiet())).size(), 14u);
}

TEST(Verify, StepsSmallerThanTheBatchStillFit) {
  VerifyOptions o = quick();
  o.engine.ubatch = 3;
  o.reference = false;
  EXPECT_TRUE(verify(hf_fixture("mixtral"), o, quiet()).passed());
}

TEST(Verify, WhatItCannotDoIsRefused) {
  VerifyOptions o = quick();
  o.prompts.pop_back();
  EXPECT_THROW(verify(hf_fixture("mixtral"), o, quiet()), ConfigError);
  o = quick();
  o.tokens = 0;
  EXPECT_THROW(verify(hf_fixture("mixtral"), o, quiet()), ConfigError);
  o = quick();
  o.engine.ctx_size = 64;
  EXPECT_THROW(verify(hf_fixture("mixtral"), o, quiet()), ConfigError);
  EXPECT_FALSE(VerifyReport().passed());
}

}  // namespace
}  // namespace ef::testing
