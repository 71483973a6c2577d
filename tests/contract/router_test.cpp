// Expert choice. The oracle sorts and works in doubles; cases with numbers worked out by hand pin down the rules of the
// families. Names C1 to C13: bug reports on other engines that these cases would have caught.
#include <algorithm>
#include <numeric>
#include <set>

#include "tests/contract/op_test.h"

namespace ef::testing {
namespace {

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

class Router : public OpTest {
 protected:
  Routing run(RouterArgs args, const std::vector<float>& logits, const std::vector<float>& bias = {}) {
    return run_on(backend(), args, logits, bias);
  }
  static Routing run_on(Backend& backend, RouterArgs args, const std::vector<float>& logits,
                        const std::vector<float>& bias = {}) {
    auto stream = backend.make_stream();
    args.rows = int64_t(logits.size()) / args.experts;
    DeviceArray<float> device_logits(backend, logits), device_bias(backend, bias);
    const size_t n = size_t(args.rows * args.top_k);
    DeviceArray<int32_t> ids(backend, std::vector<int32_t>(n, -99));
    DeviceArray<float> weights(backend, std::vector<float>(n, -99.f));
    args.logits = device_logits.data();
    args.selection_bias = bias.empty() ? nullptr : device_bias.data();
    args.ids = ids.data();
    args.weights = weights.data();
    backend.route(*stream, args);
    stream->synchronize();
    return {ids.read(), weights.read()};
  }
};

RouterArgs router(RouterScore score, int experts, int top_k) {
  RouterArgs a;
  a.score = score;
  a.experts = experts;
  a.top_k = top_k;
  return a;
}

std::vector<double> softmax(const std::vector<double>& v) {
  const double max = *std::max_element(v.begin(), v.end());
  std::vector<double> out;
  for (double x : v) out.push_back(std::exp(x - max));
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& x : out) x /= sum;
  return out;
}

// Indices by falling value, the lower index first among equals.
std::vector<int32_t> ranking(const std::vector<double>& v) {
  std::vector<int32_t> order(v.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return v[size_t(a)] > v[size_t(b)]; });
  return order;
}

struct Oracle {
  std::vector<int32_t> ids;
  std::vector<double> weights;
  double margin =
      1e300;  // between the last expert (or group) that is chosen and the first that is not, and between ranks
};

void note_margin(Oracle& o, const std::vector<double>& v, const std::vector<int32_t>& order, int taken, bool ranks) {
  for (int i = ranks ? 0 : taken - 1; i < taken && i + 1 < int(order.size()); ++i)
    o.margin = std::min(o.margin, v[size_t(order[size_t(i)])] - v[size_t(order[size_t(i + 1)])]);
}

Oracle route(const RouterArgs& a, const float* logits, const std::vector<float>& bias) {
  Oracle o;
  std::vector<double> raw(logits, logits + a.experts), score = raw;
  if (a.score == RouterScore::kSoftmax) score = softmax(raw);
  if (a.score == RouterScore::kSigmoid)
    for (double& s : score) s = 1 / (1 + std::exp(-s));
  std::vector<double> choice = score;
  for (size_t e = 0; e < bias.size(); ++e) choice[e] += double(bias[e]);
  if (a.groups > 1) {
    const size_t size = size_t(a.experts / a.groups);
    std::vector<double> group;
    for (size_t g = 0; g < size_t(a.groups); ++g) {
      std::vector<double> members(choice.begin() + long(g * size), choice.begin() + long((g + 1) * size));
      std::sort(members.rbegin(), members.rend());
      group.push_back(members[0] + (a.group_score == GroupScore::kSumOfTop2 && size > 1 ? members[1] : 0));
    }
    const auto order = ranking(group);
    note_margin(o, group, order, a.top_groups, false);
    for (size_t i = size_t(a.top_groups); i < order.size(); ++i)
      std::fill_n(choice.begin() + order[i] * long(size), size, -std::numeric_limits<double>::infinity());
  }
  const auto order = ranking(choice);
  note_margin(o, choice, order, a.top_k, true);
  o.ids.assign(order.begin(), order.begin() + a.top_k);
  for (int32_t e : o.ids) o.weights.push_back(score[size_t(e)]);
  if (a.score == RouterScore::kSoftmaxAfterTopK) o.weights = softmax(o.weights);
  const double sum = std::accumulate(o.weights.begin(), o.weights.end(), 0.0);
  for (double& w : o.weights) w = w / (a.renormalise ? sum + double(a.renormalise_eps) : 1) * double(a.scale);
  return o;
}

// Rows whose ranking hangs on less than float32 can tell are drawn again.
std::vector<float> clear_logits(Random& random, const RouterArgs& a, const std::vector<float>& bias, int rows) {
  std::vector<float> logits;
  while (rows > 0) {
    const auto row = random.floats(a.experts, 2.f);
    if (route(a, row.data(), bias).margin < 2e-7) continue;
    logits.insert(logits.end(), row.begin(), row.end());
    --rows;
  }
  return logits;
}

void expect_matches(const RouterArgs& a, const Routing& got, const std::vector<float>& logits,
                    const std::vector<float>& bias) {
  for (size_t r = 0; r * size_t(a.experts) < logits.size(); ++r) {
    const Oracle want = route(a, &logits[r * size_t(a.experts)], bias);
    for (size_t i = 0; i < size_t(a.top_k); ++i) {
      const size_t at = r * size_t(a.top_k) + i;
      ASSERT_EQ(got.ids[at], want.ids[i])
          << a.experts << " experts, top " << a.top_k << ", row " << r << ", rank " << i;
      ASSERT_NEAR(got.weights[at], want.weights[i], 3e-6 * std::fabs(want.weights[i]) + 1e-9);
    }
  }
}

// Every number of experts with every k, each scoring, with and without bias and groups.
TEST_P(Router, C9_PropertyOverExpertsAndTopK) {
  Random random(1);
  for (int experts : {8, 16, 32, 60, 64, 72, 128, 160, 256, 384, 512}) {
    for (int k = 1; k <= std::min(16, experts); ++k) {
      for (int variant = 0; variant < 6; ++variant) {
        constexpr RouterScore kScores[] = {RouterScore::kSoftmax, RouterScore::kSigmoid,
                                           RouterScore::kSoftmaxAfterTopK};
        RouterArgs a = router(kScores[variant % 3], experts, k);
        a.renormalise = (k + variant) % 2 == 0;
        a.renormalise_eps = variant == 1 ? 1e-20f : 0.f;
        a.scale = variant == 4 ? 2.5f : 1.f;
        std::vector<float> bias;
        if (variant >= 3) bias = random.floats(experts, a.score == RouterScore::kSoftmax ? 0.05f : 0.5f);
        if (variant % 3 < 2 && k % 3 != 0 && experts % 8 == 0) {
          a.groups = experts >= 64 ? 8 : 4;
          a.group_score = variant % 2 ? GroupScore::kSumOfTop2 : GroupScore::kMax;
          a.top_groups = (k + experts / a.groups - 1) / (experts / a.groups);
          a.top_groups = std::min(a.groups, a.top_groups + variant % 2);
        }
        const auto logits = clear_logits(random, a, bias, 3);
        expect_matches(a, run(a, logits, bias), logits, bias);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// OLMoE, Qwen2-MoE with norm_topk_prob = false: probabilities among all experts, which do not sum to one.
TEST_P(Router, C1_SoftmaxOverAllExpertsThenTopK) {
  RouterArgs a = router(RouterScore::kSoftmax, 4, 2);
  const float l3 = std::log(3.f), l2 = std::log(2.f), l4 = std::log(4.f);
  const std::vector<float> logits = {0, l3, l2, l4};  // probabilities 1/10, 3/10, 2/10, 4/10
  Routing r = run(a, logits);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{3, 1}));
  EXPECT_NEAR(r.weights[0], 0.4f, 1e-6);
  EXPECT_NEAR(r.weights[1], 0.3f, 1e-6);
  a.renormalise = true;
  r = run(a, logits);
  EXPECT_NEAR(r.weights[0], 4.f / 7, 1e-6);
  EXPECT_NEAR(r.weights[1], 3.f / 7, 1e-6);
}

// The correction bias moves the choice and never enters the weights.
TEST_P(Router, C4_SelectionBiasDoesNotWeigh) {
  RouterArgs a = router(RouterScore::kSigmoid, 4, 2);
  const std::vector<float> logits = {2, 1, 0, -1};
  const std::vector<float> bias = {-10, 0, 0, 10};
  Routing r = run(a, logits, bias);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{3, 1}));
  EXPECT_NEAR(r.weights[0], 1 / (1 + std::exp(1.f)), 1e-6);
  EXPECT_NEAR(r.weights[1], 1 / (1 + std::exp(-1.f)), 1e-6);
  a.renormalise = true;
  a.renormalise_eps = 1e-20f;
  a.scale = 2.5f;
  r = run(a, logits, bias);
  EXPECT_NEAR(r.weights[0] + r.weights[1], 2.5f, 1e-5);
  EXPECT_NEAR(r.weights[0] / r.weights[1], 0.2689414f / 0.7310586f, 1e-6);
}

// DeepSeek-V3: with a strongly negative bias every biased score is below zero, and a mask of 0 would win.
TEST_P(Router, C5_MaskedGroupsLoseToNegativeScores) {
  RouterArgs a = router(RouterScore::kSigmoid, 8, 2);
  a.groups = 4;
  a.top_groups = 1;
  a.group_score = GroupScore::kSumOfTop2;
  // Group 2 (experts 4, 5) has the best pair; group 0 has the best single expert.
  const std::vector<float> logits = {3, -9, 0, 0, 1, 1, -1, -1};
  const std::vector<float> bias(8, -5.f);
  const Routing r = run(a, logits, bias);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{4, 5}));
  EXPECT_NEAR(r.weights[0], 0.7310586f, 1e-6);
  // With the maximum as the group's score the other group wins.
  a.group_score = GroupScore::kMax;
  EXPECT_EQ(run(a, logits, bias).ids, (std::vector<int32_t>{0, 1}));
}

// DeepSeek-V2, group_limited_greedy: softmax over all experts first, then the groups are masked.
TEST_P(Router, C6_SoftmaxBeforeGroupMask) {
  RouterArgs a = router(RouterScore::kSoftmax, 4, 2);
  a.groups = 2;
  a.top_groups = 1;
  a.scale = 16.f;
  const std::vector<float> logits = {std::log(4.f), 0, std::log(3.f), std::log(2.f)};  // tenths: 4, 1, 3, 2
  const Routing r = run(a, logits);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_NEAR(r.weights[0], 16 * 0.4f, 1e-5);
  EXPECT_NEAR(r.weights[1], 16 * 0.1f, 1e-5);
}

// A NaN shows in every weight of its row and only there; ids stay usable.
TEST_P(Router, C8_NanShowsInTheWeightsOfItsRow) {
  for (RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSoftmaxAfterTopK, RouterScore::kSparsemixer}) {
    for (int where : {0, 3, 7}) {
      Random random(2);
      RouterArgs a = router(score, 8, 2);
      auto logits = random.floats(3 * 8);
      logits[size_t(8 + where)] = NAN;
      const Routing r = run(a, logits);
      for (size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(std::isnan(r.weights[i]), i / 2 == 1);
        EXPECT_TRUE(r.ids[i] >= 0 && r.ids[i] < 8);
      }
      for (size_t row = 0; row < 3; ++row) EXPECT_NE(r.ids[2 * row], r.ids[2 * row + 1]);
    }
  }
  RouterArgs a = router(RouterScore::kSigmoid, 8, 4);
  a.groups = 4, a.top_groups = 2, a.group_score = GroupScore::kSumOfTop2;
  std::vector<float> bias(8, 0.f);
  bias[5] = NAN;
  const Routing r = run(a, std::vector<float>(8, 1.f), bias);
  for (float w : r.weights) EXPECT_TRUE(std::isnan(w));
  EXPECT_EQ(std::set<int32_t>(r.ids.begin(), r.ids.end()).size(), 4u);
  for (float bad : {INFINITY, -INFINITY}) {
    const Routing all = run(router(RouterScore::kSoftmax, 8, 2), std::vector<float>(8, bad));
    for (float w : all.weights) EXPECT_TRUE(std::isnan(w));
  }
}

// gpt-oss, Granite: top-k of the logits, softmax over the chosen; the router's bias is in the logits.
TEST_P(Router, C10_SoftmaxOverTheChosen) {
  const Routing r = run(router(RouterScore::kSoftmaxAfterTopK, 5, 2), {std::log(3.f), -2, 0, std::log(2.f), -50});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 3}));
  EXPECT_NEAR(r.weights[0], 0.6f, 1e-6);
  EXPECT_NEAR(r.weights[1], 0.4f, 1e-6);
}

// Two masked rounds in doubles, after Hugging Face's sparsemixer() at inference.
Oracle sparsemixer(const std::vector<float>& logits, int k, double jitter) {
  Oracle o;
  std::vector<double> left(logits.begin(), logits.end());
  for (int round = 0; round < k; ++round) {
    const size_t best = size_t(std::max_element(left.begin(), left.end()) - left.begin());
    const double max = left[best];
    double sum = 0;
    for (size_t e = 0; e < left.size(); ++e) {
      const double gap = (max - double(logits[e])) / std::max(std::fabs(double(logits[e])), max);
      o.margin = std::min(o.margin, std::fabs(gap - 2 * jitter));
      if (e != best) o.margin = std::min(o.margin, std::fabs(max - left[e]));
      if (gap <= 2 * jitter) sum += std::exp(left[e] - max);
    }
    o.ids.push_back(int32_t(best));
    o.weights.push_back(1 / sum);
    left[best] = -std::numeric_limits<double>::infinity();
  }
  return o;
}

TEST_P(Router, C13_SparsemixerOfPhi) {
  RouterArgs a = router(RouterScore::kSparsemixer, 4, 2);
  a.jitter_eps = 0.05f;  // within 10 % of the best
  // Round 1: 10.0 and 9.5 remain (8.9 is 11 % away). Round 2: the best is 9.5; 8.9 is 6.3 % away and remains, 1 does
  // not.
  const Routing r = run(a, {9.5f, 10.f, 8.9f, 1.f});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 0}));
  EXPECT_NEAR(r.weights[0], 1 / (1 + std::exp(-0.5)), 1e-6);
  EXPECT_NEAR(r.weights[1], 1 / (1 + std::exp(-0.6)), 1e-6);
  // Alone within the threshold: the weight is one, and the weights of a row may sum to two.
  const Routing sharp = run(a, {1.f, 5.f, -3.f, 2.f});
  EXPECT_EQ(sharp.ids, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(sharp.weights, (std::vector<float>{1.f, 1.f}));
  // All negative: the factor is |logit| where that is the larger. (-1 - -1.05) / 1.05 = 4.8 % remains.
  const Routing negative = run(a, {-1.05f, -4.f, -1.f, -9.f});
  EXPECT_EQ(negative.ids, (std::vector<int32_t>{2, 0}));
  EXPECT_NEAR(negative.weights[0], 1 / (1 + std::exp(-0.05)), 1e-6);

  Random random(3);
  int tried = 0;
  while (tried < 300) {
    RouterArgs b = router(RouterScore::kSparsemixer, 16, 2);
    b.jitter_eps = tried % 2 ? 0.01f : 0.3f;
    const auto logits = random.floats(16, 3.f);
    const Oracle want = sparsemixer(logits, 2, double(b.jitter_eps));
    if (want.margin < 1e-5) continue;
    ++tried;
    const Routing got = run(b, logits);
    ASSERT_EQ(got.ids, want.ids);
    for (size_t i = 0; i < 2; ++i) ASSERT_NEAR(got.weights[i], want.weights[i], 1e-6);
  }
}

TEST_P(Router, TiesGoToTheLowerId) {
  for (RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSoftmaxAfterTopK, RouterScore::kSparsemixer}) {
    const Routing r = run(router(score, 6, 3), {1, 2, 1, 2, 1, 2});
    EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 3, 5})) << int(score);
    EXPECT_EQ(run(router(score, 6, 3), std::vector<float>(6, 0.f)).ids, (std::vector<int32_t>{0, 1, 2}));
  }
  RouterArgs a = router(RouterScore::kSigmoid, 8, 2);
  a.groups = 4, a.top_groups = 1;
  EXPECT_EQ(run(a, std::vector<float>(8, 1.f)).ids, (std::vector<int32_t>{0, 1}));
}

TEST_P(Router, AllExpertsChosen) {
  RouterArgs a = router(RouterScore::kSoftmax, 5, 5);
  a.renormalise = true;
  const std::vector<float> logits = {0, 3, 1, 4, 2};
  expect_matches(a, run(a, logits), logits, {});
}

TEST_P(Router, MinusInfinityIsNeverPreferred) {
  const Routing r = run(router(RouterScore::kSoftmax, 4, 2), {-INFINITY, 1, -INFINITY, -80});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 3}));
  EXPECT_FLOAT_EQ(r.weights[0], 1.f);
}

TEST_P(Router, BitIdenticalInAnyCompanyAndThreads) {
  Random random(4);
  for (RouterScore score :
       {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSoftmaxAfterTopK, RouterScore::kSparsemixer}) {
    RouterArgs a = router(score, 128, 8);
    a.renormalise = score == RouterScore::kSoftmax;
    const auto logits = random.floats(65 * 128, 2.f);
    const Routing all = run(a, logits);
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      auto other = GetParam().make(pool);
      const Routing again = run_on(*other, a, logits);
      EXPECT_EQ(again.ids, all.ids);
      EXPECT_TRUE(same_bits(again.weights, all.weights));
    }
    for (long r = 0; r < 65; r += 7) {
      const Routing alone = run(a, {logits.begin() + r * 128, logits.begin() + (r + 1) * 128});
      EXPECT_EQ(alone.ids, std::vector<int32_t>(all.ids.begin() + r * 8, all.ids.begin() + (r + 1) * 8));
      EXPECT_TRUE(same_bits(alone.weights, {all.weights.begin() + r * 8, all.weights.begin() + (r + 1) * 8}));
    }
  }
}

TEST_P(Router, ZeroRows) { EXPECT_TRUE(run(router(RouterScore::kSoftmax, 8, 2), {}).ids.empty()); }

EF_FOR_EACH_BACKEND(Router);

}  // namespace
}  // namespace ef::testing
