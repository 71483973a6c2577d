#include "expertflow/predict/router_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ef {

void router_probabilities(const RouterConfig& router, const float* logits, float* out) {
  const auto experts = size_t(router.experts);
  if (router.score == RouterScore::kSigmoid) {
    for (size_t e = 0; e < experts; ++e) out[e] = 1.f / (1.f + std::exp(-logits[e]));
    return;
  }
  const float top = *std::max_element(logits, logits + experts);
  float sum = 0;
  for (size_t e = 0; e < experts; ++e) sum += out[e] = std::exp(logits[e] - top);
  for (size_t e = 0; e < experts; ++e) out[e] /= sum;
}

std::span<const std::pair<ExpertId, float>> RouterScores::of(const float* logits, int64_t rows) {
  const auto experts = size_t(router_.experts), most = std::min(experts, 2 * size_t(router_.top_k));
  row_.resize(experts), order_.resize(experts);
  sum_.assign(experts, 0.f);
  for (int64_t r = 0; r < rows; ++r) {
    router_probabilities(router_, logits + size_t(r) * experts, row_.data());
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(order_.begin(), order_.begin() + std::ptrdiff_t(most), order_.end(), [&](ExpertId a, ExpertId b) {
      return row_[size_t(a)] != row_[size_t(b)] ? row_[size_t(a)] > row_[size_t(b)] : a < b;
    });
    for (size_t i = 0; i < most; ++i) sum_[size_t(order_[i])] += row_[size_t(order_[i])] / float(rows);
  }
  probable_.clear();
  for (size_t e = 0; e < experts; ++e)
    if (sum_[e] > 0) probable_.emplace_back(ExpertId(e), sum_[e]);
  return probable_;
}

}  // namespace ef
