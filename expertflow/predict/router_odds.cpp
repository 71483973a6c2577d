#include "expertflow/predict/router_odds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ef {

void RouterOdds::row(const float* logits, const float* selection_bias, const int32_t* chosen, float slope,
                     float* probabilities) {
  const int n = router_.experts;
  score_.assign(logits, logits + n);
  // A bias decides on the scale of scores (DeepSeek-V3, arXiv 2412.19437, eq. 16).
  if (selection_bias) {
    if (router_.score == RouterScore::kSigmoid)
      for (float& s : score_) s = 1.f / (1.f + std::exp(-s));
    for (int e = 0; e < n; ++e) score_[size_t(e)] += selection_bias[e];
  }
  double sum = 0, square = 0;
  for (const float s : score_) {
    if (!std::isfinite(s)) continue;
    sum += double(s), square += double(s) * double(s);
  }
  const double mean = sum / n, deviation = std::sqrt(std::max(square / n - mean * mean, 1e-12));

  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::fill_n(probabilities, n, 0.f);
  if (!chosen) {
    order_.resize(size_t(n));
    std::iota(order_.begin(), order_.end(), 0);
    const auto value = [&](int32_t e) { return std::isnan(score_[size_t(e)]) ? -kInfinity : score_[size_t(e)]; };
    std::partial_sort(order_.begin(), order_.begin() + router_.top_k, order_.end(),
                      [&](int32_t a, int32_t b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
    chosen = order_.data();
  }
  for (int i = 0; i < router_.top_k; ++i) probabilities[chosen[i]] = 1.f;
  float last = kInfinity, first = -kInfinity;  // of the chosen, and of the others
  for (int e = 0; e < n; ++e) {
    const float s = score_[size_t(e)];
    if (probabilities[e] > 0)
      last = std::min(last, std::isfinite(s) ? s : last);
    else
      first = std::max(first, std::isfinite(s) ? s : first);
  }
  const float edge = std::isfinite(first) && std::isfinite(last) ? (first + last) / 2 : float(mean);
  constexpr float kHalf = 0.5f, kAboveHalf = 0.5f + 0x1p-24f;
  for (int e = 0; e < n; ++e) {
    const float u = slope * (score_[size_t(e)] - edge) / float(deviation);
    const float p = std::isfinite(u) ? 1.f / (1.f + std::exp(-u)) : 0.f;
    // Groups that are left out, and rounding, may put an expert on the wrong side of the edge.
    probabilities[e] = probabilities[e] > 0 ? std::max(p, kAboveHalf) : std::min(p, kHalf);
  }
}

}  // namespace ef
