// Expert choice. A row with a NaN logit (or bias) still gets distinct ids within range, and NaN weights, which the
// engine sees.
#include <algorithm>
#include <cmath>
#include <limits>

#include "expertflow/backend/cpu/cpu_ops.h"
#include "expertflow/base/errors.h"

namespace ef::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void softmax(const float* in, float* out, int n) {
  float max = kMinusInfinity;
  for (int i = 0; i < n; ++i) max = std::max(max, in[i]);
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += out[i] = std::exp(in[i] - max);
  for (int i = 0; i < n; ++i) out[i] /= sum;
}

// The k best of n, best first, the lower index first among equals; -inf may be chosen, NaN counts as -inf.
void top_k(const float* choice, int n, int k, int32_t* ids) {
  const auto value = [&](int32_t i) { return std::isnan(choice[i]) ? kMinusInfinity : choice[i]; };
  int count = 0;
  for (int32_t i = 0; i < n; ++i) {
    if (count == k && !(value(i) > value(ids[k - 1]))) continue;
    int at = count < k ? count++ : k - 1;
    for (; at > 0 && value(i) > value(ids[at - 1]); --at) ids[at] = ids[at - 1];
    ids[at] = i;
  }
}

float group_value(const float* choice, int n, GroupScore kind) {
  float best = kMinusInfinity, second = kMinusInfinity;
  for (int i = 0; i < n; ++i) {
    if (choice[i] > best)
      second = best, best = choice[i];
    else if (choice[i] > second)
      second = choice[i];
  }
  return kind == GroupScore::kMax || n < 2 ? best : best + second;
}

// Scores that decide and scores that weigh; one worker's space, reused for all its rows.
struct RouterScratch {
  std::vector<float> score, choice, group;
  std::vector<int32_t> group_ids;
  std::vector<char> keep;
};

void mask_groups(const RouterArgs& a, RouterScratch& s) {
  EF_DCHECK(a.experts % a.groups == 0 && a.top_groups <= a.groups);
  const int size = a.experts / a.groups;
  s.group.resize(size_t(a.groups));
  s.group_ids.resize(size_t(a.top_groups));
  for (int g = 0; g < a.groups; ++g) s.group[size_t(g)] = group_value(&s.choice[size_t(g * size)], size, a.group_score);
  top_k(s.group.data(), a.groups, a.top_groups, s.group_ids.data());
  s.keep.assign(size_t(a.groups), 0);
  for (int32_t g : s.group_ids) s.keep[size_t(g)] = 1;
  for (int g = 0; g < a.groups; ++g)
    if (!s.keep[size_t(g)]) std::fill_n(&s.choice[size_t(g * size)], size, kMinusInfinity);
}

void choose(const RouterArgs& a, const float* logits, RouterScratch& s, int32_t* ids, float* weights) {
  s.score.resize(size_t(a.experts));
  switch (a.score) {
    case RouterScore::kSoftmax:
      softmax(logits, s.score.data(), a.experts);
      break;
    case RouterScore::kSigmoid:
      for (int e = 0; e < a.experts; ++e) s.score[size_t(e)] = 1.f / (1.f + std::exp(-logits[e]));
      break;
    default:
      std::copy_n(logits, a.experts, s.score.data());
  }
  s.choice = s.score;
  if (a.selection_bias)
    for (int e = 0; e < a.experts; ++e) s.choice[size_t(e)] += a.selection_bias[e];
  if (a.groups > 1) mask_groups(a, s);
  top_k(s.choice.data(), a.experts, a.top_k, ids);
  for (int i = 0; i < a.top_k; ++i) weights[i] = s.score[size_t(ids[i])];
  if (a.score == RouterScore::kSoftmaxAfterTopK) softmax(weights, weights, a.top_k);
}

// Phi-MoE at inference, one round a rank: the best remaining expert, weighted by its softmax among the remaining ones
// whose logits are within 2 * jitter_eps of the best, relative to the larger of |logit| and the best. Formula:
// sparsemixer() of Hugging Face's modeling_phimoe.py; the paper is arXiv 2409.12136.
void sparsemixer(const RouterArgs& a, const float* logits, RouterScratch& s, int32_t* ids, float* weights) {
  s.choice.assign(logits, logits + a.experts);
  for (int i = 0; i < a.top_k; ++i) {
    // -inf marks experts of earlier ranks, so a rank must not fall back on them when everything else is -inf as well.
    int32_t best = -1;
    for (int32_t e = 0; e < a.experts; ++e) {
      if (std::find(ids, ids + i, e) != ids + i) continue;
      if (best < 0 || s.choice[size_t(e)] > s.choice[size_t(best)]) best = e;
    }
    const float max = s.choice[size_t(best)];
    float sum = 0;
    for (int e = 0; e < a.experts; ++e) {
      const float factor = std::max(std::fabs(logits[e]), max);
      if ((max - logits[e]) / factor > 2 * a.jitter_eps) continue;
      sum += std::exp(s.choice[size_t(e)] - max);
    }
    ids[i] = best;
    weights[i] = 1.f / sum;
    s.choice[size_t(best)] = kMinusInfinity;
  }
}

void route_row(const RouterArgs& a, int64_t row, RouterScratch& s) {
  const float* logits = a.logits + row * a.experts;
  int32_t* ids = a.ids + row * a.top_k;
  float* weights = a.weights + row * a.top_k;
  if (a.score == RouterScore::kSparsemixer)
    sparsemixer(a, logits, s, ids, weights);
  else
    choose(a, logits, s, ids, weights);
  if (a.renormalise) {
    float sum = 0;
    for (int i = 0; i < a.top_k; ++i) sum += weights[i];
    for (int i = 0; i < a.top_k; ++i) weights[i] /= sum + a.renormalise_eps;
  }
  for (int i = 0; i < a.top_k; ++i) weights[i] *= a.scale;
  const auto is_nan = [](float v) { return std::isnan(v); };
  if (std::any_of(logits, logits + a.experts, is_nan) ||
      (a.selection_bias && std::any_of(a.selection_bias, a.selection_bias + a.experts, is_nan)))
    std::fill_n(weights, a.top_k, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

void route(const Context& c, const RouterArgs& a) {
  EF_DCHECK(a.top_k <= a.experts);
  constexpr int64_t kRowsPerTask = 16;
  c.pool.parallel_for(a.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    RouterScratch scratch;
    for (int64_t row = begin; row < end; ++row) route_row(a, row, scratch);
  });
}

}  // namespace ef::cpu
