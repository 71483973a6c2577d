// The low-rank predictor: sizes by hand, and training on samples whose law is known.
#include "expertflow/predict/low_rank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "expertflow/base/errors.h"
#include "expertflow/predict/train_heads.h"

namespace ef {
namespace {

constexpr int kLayers = 3, kHidden = 16, kExperts = 8;

// Routers that depend on two directions of sixteen. bent: on the absolute value of the first, which no line follows.
StepSamples make_samples(size_t count, bool bent) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> w(size_t(kLayers) * kExperts * 2);
  for (float& v : w) v = normal(random);
  StepSamples s;
  s.layers = kLayers, s.hidden = kHidden, s.experts = kExperts, s.top_k = 2, s.count = count;
  for (size_t i = 0; i < count; ++i) {
    s.begins.push_back(i % 50 == 0);
    std::vector<uint16_t> x;
    for (int k = 0; k < kHidden; ++k) x.push_back(to_bf16(normal(random)));
    const float first = from_bf16(x[0]) + from_bf16(x[1]), second = from_bf16(x[2]) - from_bf16(x[3]);
    for (int l = 0; l < kLayers; ++l) {
      s.input.insert(s.input.end(), x.begin(), x.end());
      s.routed.insert(s.routed.end(), x.begin(), x.end());
      for (int e = 0; e < kExperts; ++e) {
        const float* v = &w[size_t(2 * (l * kExperts + e))];
        s.logits.push_back(v[0] * (bent ? std::abs(first) : first) + v[1] * second + 0.5f * float(e));
      }
    }
  }
  return s;
}

TrainedPredictor train(const StepSamples& s, int threads, uint64_t most = 0) {
  RouterConfig router;
  router.experts = kExperts, router.top_k = 2;
  std::vector<HostRouter> routers(kLayers);
  for (auto& r : routers) r.weight.assign(size_t(kExperts * kHidden), 0.f), r.bias.assign(kExperts, 0.f);
  TrainHeadsOptions options;
  options.hybrid = options.pre_attention = false;
  options.low_rank = true, options.most_low_rank_numbers = most;
  TrainedPredictor out;
  out.file = "test";
  ThreadPool pool(threads);
  size_t last = 0, all = 0;
  train_heads(
      s, router, routers, options, pool, [&](size_t done, size_t total) { last = done, all = total; }, out);
  EXPECT_EQ(last, 2u);  // layers 0 and 1 have something ahead of them
  EXPECT_EQ(all, 2u);
  return out;
}

// Share of the two largest logits of a target that are among the two largest of what is predicted.
double recall(const TrainedPredictor& t, const StepSamples& s, LayerId layer, LayerId target) {
  LowRankMixer mixer;
  const TrainedTensor& mix = *t.find(low_rank_name(layer, "mix"));
  mixer.rank = int(mix.cols), mixer.units = int(mix.rows), mixer.mix = mix.values;
  mixer.bias = t.at(low_rank_name(layer, "mix_bias"), 1, mixer.units).values;
  const auto& projection = t.at(low_rank_name(layer, "projection"), mixer.rank, kHidden).values;
  const auto& shift = t.at(low_rank_name(layer, "shift"), 1, mixer.rank).values;
  const auto& weight = t.at(head_name(kLowRank, layer, target, "weight"), kExperts, mixer.rank + mixer.units).values;
  const auto& bias = t.at(head_name(kLowRank, layer, target, "bias"), 1, kExperts + 1).values;
  const auto best = [](const float* v) {
    std::vector<int> order(kExperts);
    for (int e = 0; e < kExperts; ++e) order[size_t(e)] = e;
    std::sort(order.begin(), order.end(), [&](int a, int b) { return v[a] > v[b]; });
    return std::pair(order[0], order[1]);
  };
  double hits = 0;
  for (size_t i = 0; i < s.count; ++i) {
    std::vector<float> z(shift), features(size_t(mixer.rank + mixer.units)), y(kExperts);
    for (int r = 0; r < mixer.rank; ++r)
      for (int k = 0; k < kHidden; ++k)
        z[size_t(r)] += projection[size_t(r * kHidden + k)] *
                        from_bf16(s.routed[(i * kLayers + size_t(layer)) * kHidden + size_t(k)]);
    mixer(z.data(), features.data());
    for (size_t e = 0; e < kExperts; ++e) {
      y[e] = bias[e];
      for (size_t f = 0; f < features.size(); ++f) y[e] += weight[e * features.size() + f] * features[f];
    }
    const auto [a, b] = best(y.data());
    const auto [c, d] = best(&s.logits[(i * kLayers + size_t(target)) * kExperts]);
    hits += (a == c || a == d) + (b == c || b == d);
  }
  return hits / double(2 * s.count);
}

TEST(LowRank, SizesByHand) {
  // rank x hidden + rank + units x rank + units = 4 x 10 + 4 + 4 x 4 + 4; experts x (4 + 4) + experts + 1.
  EXPECT_EQ(low_rank_numbers({4, 4}, 10, 6, 1, 0), 64u);
  EXPECT_EQ(low_rank_numbers({4, 4}, 10, 6, 2, 3), 2 * 64u + 3 * 55u);
  EXPECT_EQ(low_rank_size(256, 32, 11, 38, 0).rank, 64);
  // A model of the shape of Qwen3-30B-A3B: 48 layers of 128 experts, hidden 2048, 29 thousand million numbers in
  // experts.
  const uint64_t most = 28'991'029'248ull / 1000;
  const LowRankSize size = low_rank_size(2048, 128, 47, 182, most);
  EXPECT_EQ(size.rank, 64);
  EXPECT_LE(low_rank_numbers(size, 2048, 128, 47, 182), most);
  EXPECT_LT(low_rank_size(2048, 128, 47, 182, 4'000'000).rank, 64);
  EXPECT_EQ(low_rank_size(2048, 128, 47, 182, 1000).rank, 0);
}

TEST(LowRank, TheUnitsAreSilu) {
  LowRankMixer mixer{2, 1, {1, -1}, {0.5f}};
  const float z[] = {2, 0.5f};
  float out[3];
  mixer(z, out);
  EXPECT_EQ(out[0], 2);
  EXPECT_EQ(out[1], 0.5f);
  EXPECT_NEAR(out[2], 2 / (1 + std::exp(-2.0)), 1e-6);  // silu(2 - 0.5 + 0.5)
}

TEST(LowRank, FindsALawOfTwoDirections) {
  if (!training_available()) GTEST_SKIP() << "built without Eigen";
  const StepSamples s = make_samples(4096, false);
  const TrainedPredictor t = train(s, 2);
  EXPECT_GT(recall(t, s, 0, 1), 0.97);
  EXPECT_GT(recall(t, s, 0, 2), 0.97);
  EXPECT_GT(recall(t, s, 1, 2), 0.97);
  EXPECT_EQ(t.find(head_name(kLowRank, 1, 1, "weight")), nullptr);
}

TEST(LowRank, ThePerceptronFollowsWhatNoLineDoes) {
  if (!training_available()) GTEST_SKIP() << "built without Eigen";
  const StepSamples s = make_samples(16384, true);
  TrainedPredictor t = train(s, 2);
  const double with = recall(t, s, 0, 1);
  TrainedTensor& weight = t.tensors[head_name(kLowRank, 0, 1, "weight")];
  const auto rank = t.find(low_rank_name(0, "mix"))->cols;
  for (int64_t e = 0; e < weight.rows; ++e)
    for (int64_t i = rank; i < weight.cols; ++i) weight.values[size_t(e * weight.cols + i)] = 0;
  EXPECT_GT(with, recall(t, s, 0, 1) + 0.05);
}

TEST(LowRank, ThreadsDoNotMatterAndTheLimitIsKept) {
  if (!training_available()) GTEST_SKIP() << "built without Eigen";
  const StepSamples s = make_samples(1024, false);
  const TrainedPredictor one = train(s, 1), two = train(s, 3);
  ASSERT_EQ(one.tensors.size(), two.tensors.size());
  for (const auto& [name, tensor] : one.tensors) EXPECT_EQ(tensor.values, two.find(name)->values) << name;
  const TrainedPredictor small = train(s, 1, 700);
  uint64_t numbers = 0;
  for (const auto& [name, tensor] : small.tensors)
    if (name.rfind(kLowRank, 0) == 0) numbers += tensor.values.size();
  EXPECT_LE(numbers, 700u);
  EXPECT_THROW(train(s, 1, 10), ConfigError);
}

}  // namespace
}  // namespace ef
