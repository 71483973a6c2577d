// Training on samples whose law is known.
#include "expertflow/predict/train_heads.h"

#include <gtest/gtest.h>

#include <random>

#include "expertflow/base/errors.h"
#include "expertflow/predict/router_history.h"

namespace ef {
namespace {

constexpr int kLayers = 3, kHidden = 8, kExperts = 4;

// logits of layer l = W_l x, and of layer 2 also 0.5 times the previous token's logits of layer 2, less their mean.
struct Law {
  std::vector<float> w[kLayers];  // [experts, hidden]
  StepSamples samples;
};

Law make_law(size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  Law law;
  for (auto& w : law.w)
    for (int i = 0; i < kExperts * kHidden; ++i) w.push_back(normal(random));
  StepSamples& s = law.samples;
  s.layers = kLayers, s.hidden = kHidden, s.experts = kExperts, s.top_k = 2, s.count = count;
  std::vector<float> before(kExperts, 0.f);
  for (size_t i = 0; i < count; ++i) {
    s.begins.push_back(i % 50 == 0);
    if (i % 50 == 0) before.assign(kExperts, 0.f);
    std::vector<uint16_t> x;
    for (int k = 0; k < kHidden; ++k) x.push_back(to_bf16(normal(random)));
    for (int l = 0; l < kLayers; ++l) {
      s.input.insert(s.input.end(), x.begin(), x.end());
      s.routed.insert(s.routed.end(), x.begin(), x.end());
      std::vector<float> z(kExperts);
      for (int e = 0; e < kExperts; ++e) {
        for (int k = 0; k < kHidden; ++k) z[size_t(e)] += law.w[l][size_t(e * kHidden + k)] * from_bf16(x[size_t(k)]);
        if (l == 2) z[size_t(e)] += 0.5f * before[size_t(e)];
      }
      if (l == 2) before = z;
      s.logits.insert(s.logits.end(), z.begin(), z.end());
    }
  }
  return law;
}

TrainedPredictor train(const Law& law, int threads) {
  RouterConfig router;
  router.experts = kExperts, router.top_k = 2;
  std::vector<HostRouter> routers(kLayers);
  for (int l = 0; l < kLayers; ++l) {
    routers[size_t(l)].weight.assign(size_t(kExperts * kHidden), 0.1f);  // what gate-ahead would say: wrong
    routers[size_t(l)].bias.assign(kExperts, 0.25f);
  }
  TrainedPredictor out;
  out.file = "test";
  ThreadPool pool(threads);
  TrainHeadsOptions options;
  options.distance = 2, options.linear = true;
  size_t last = 0;
  train_heads(
      law.samples, router, routers, options, pool, [&](size_t done, size_t) { last = done; }, out);
  EXPECT_EQ(last, 8u);  // three before attention, 0 -> 1 and 0 -> 2 from the embedding; 0 -> 1, 0 -> 2, 1 -> 2
  return out;
}

TEST(TrainHeads, FindsALinearLaw) {
  if (!training_available()) GTEST_SKIP() << "built without Eigen";
  const Law law = make_law(4000);
  const TrainedPredictor t = train(law, 2);
  const auto near = [&](const std::string& name, const std::vector<float>& expected, float off) {
    const TrainedTensor& found = t.at(name, kExperts, kHidden);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(found.values[i] + off, expected[i], 0.03) << name << " " << i;
  };
  near("linear.0.1.weight", law.w[1], 0);
  near("pre-attention.1.1.weight", law.w[1], 0);
  near("pre-attention.0.2.weight", law.w[2], 0);
  near("hybrid.0.1.weight", law.w[1], 0.1f);  // what gate-ahead says is taken off
  near("hybrid.0.2.weight", law.w[2], 0.1f);
  // The part of the token before: half the target's own logits, nothing else.
  const TrainedTensor& history = t.at("hybrid.0.2.history", kExperts, RouterHistory::kParts * kExperts);
  for (int e = 0; e < kExperts; ++e)
    for (int f = 0; f < kExperts; ++f)
      EXPECT_NEAR(history.values[size_t(e * history.cols + f)], e == f ? 0.5 : 0.0, 0.06) << e << " " << f;
  EXPECT_EQ(t.find("linear.0.1.history"), nullptr);
}

TEST(TrainHeads, ThreadsDoNotMatter) {
  if (!training_available()) GTEST_SKIP() << "built without Eigen";
  const Law law = make_law(600);
  const TrainedPredictor one = train(law, 1), two = train(law, 3);
  ASSERT_EQ(one.tensors.size(), two.tensors.size());
  for (const auto& [name, tensor] : one.tensors) EXPECT_EQ(tensor.values, two.find(name)->values) << name;
}

// The decaying mean and what this token has passed, by hand: layers 0 and 1, one expert.
TEST(RouterHistory, RemembersTheTokenBefore) {
  TrainedTensor mean{2, 1, {1, 2}};
  RouterHistory history(2, 1, mean);
  const auto token = [&](int32_t sequence, int32_t position, float first, float second) {
    const TokenId id = 5;
    history.begin_step({{&id, 1}, {&sequence, 1}, {&position, 1}});
    for (LayerId l = 0; l < 2; ++l) {
      StepView view;
      const float logit = l == 0 ? first : second;
      view.layer = l, view.rows = 1, view.logits = &logit;
      history.observe(view);
    }
  };
  const auto features = [&](LayerId layer, LayerId target) {
    std::vector<float> f(RouterHistory::kParts);
    history.features(0, layer, target, f.data());
    return f;
  };
  token(3, 0, 2, 6);
  token(3, 1, 4, 8);
  // Target 1: before 8 - 2; layer 0 before it: 4 - 1 unless passed; none after; mean 0.8 * (0.2 * 4) + 0.2 * 6.
  const std::vector<float> whole = features(-1, 1);
  EXPECT_FLOAT_EQ(whole[0], 6);
  EXPECT_FLOAT_EQ(whole[1], 3);
  EXPECT_FLOAT_EQ(whole[2], 0);
  EXPECT_NEAR(whole[3], 0.8 * 0.8 + 1.2, 1e-6);
  EXPECT_FLOAT_EQ(features(0, 1)[1], 0);
  EXPECT_FLOAT_EQ(features(0, 0)[2], 6);
  token(4, 0, 1, 2);  // another sequence knows nothing of it
  EXPECT_EQ(features(0, 1), (std::vector<float>{0, 0, 0, 0}));
  token(3, 0, 1, 2);  // and neither does the next one under the same number
  EXPECT_FLOAT_EQ(features(0, 1)[0], 0);
}

}  // namespace
}  // namespace ef
