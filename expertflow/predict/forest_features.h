// The features of Forest, for training and for use alike.
#pragma once
#include <algorithm>
#include <cmath>

#include "expertflow/predict/forest.h"
#include "expertflow/predict/router_odds.h"

namespace ef {

class ForestFeatures {
 public:
  explicit ForestFeatures(const Config& config) : ForestFeatures(config.router) {}
  explicit ForestFeatures(const RouterConfig& router) : odds_(router), experts_(size_t(router.experts)) {
    gate_.resize(experts_), embedded_.resize(experts_);
  }
  /// gate, embedded: the target's router on the stream and on the embedding, [experts] each; before, average: of
  /// RouterHistory; mean: of the target's router. out: [experts].
  void rows(const float* gate, const float* embedded, const float* selection_bias, const float* before,
            const float* average, const float* mean, int distance, LayerId target, ForestRow* out) {
    odds_.row(gate, selection_bias, nullptr, 1.f, gate_.data());
    odds_.row(embedded, selection_bias, nullptr, 1.f, embedded_.data());
    for (size_t e = 0; e < experts_; ++e)
      out[e] = {log_odds(gate_[e]), log_odds(embedded_[e]), before[e], average[e], mean[e],
                float(distance),    float(target)};
  }

 private:
  static float log_odds(float p) {
    p = std::clamp(p, 1e-6f, 1 - 1e-6f);
    return std::log(p / (1 - p));
  }
  RouterOdds odds_;
  const size_t experts_;
  std::vector<float> gate_, embedded_;
};

}  // namespace ef
