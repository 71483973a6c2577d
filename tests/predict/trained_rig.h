// A trained predictor with made-up numbers, for tests that need one for a fixture.
#pragma once
#include <random>

#include "expertflow/predict/low_rank.h"
#include "expertflow/predict/router_history.h"
#include "expertflow/predict/trained.h"

namespace ef::testing {

inline TrainedPredictor made_up(const Config& config, int horizon, float scale, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  TrainedPredictor t;
  t.file = "made up", t.fingerprint = "0123456789abcdef", t.best = "trained";
  t.layers = int(config.layers.size()), t.hidden = config.hidden;
  t.experts = config.router.experts, t.top_k = config.router.top_k;
  const auto fill = [&](const std::string& name, int64_t rows, int64_t cols) {
    TrainedTensor tensor{rows, cols, {}};
    for (int64_t i = 0; i < rows * cols; ++i) tensor.values.push_back(scale * normal(random));
    return &(t.tensors[name] = std::move(tensor));
  };
  const auto head = [&](const char* kind, LayerId l, LayerId target) {
    fill(head_name(kind, l, target, "weight"), t.experts, t.hidden);
    fill(head_name(kind, l, target, "history"), t.experts, RouterHistory::kParts * t.experts);
    fill(head_name(kind, l, target, "bias"), 1, t.experts + 1)->values.back() = 3;
  };
  constexpr int kRank = 3, kUnits = 2;
  for (LayerId l = 0; l < t.layers; ++l) {
    if (!config.layers[size_t(l)].sparse) continue;
    head("pre-attention", l, l);
    for (LayerId target = 1; l == 0 && target < t.layers && target <= horizon; ++target)
      if (config.layers[size_t(target)].sparse) head("pre-attention", 0, target);
    for (LayerId target = l + 1; target < t.layers && target - l <= horizon; ++target) {
      if (!config.layers[size_t(target)].sparse) continue;
      head("hybrid", l, target), head("linear", l, target);
      fill(head_name(kLowRank, l, target, "weight"), t.experts, kRank + kUnits);
      fill(head_name(kLowRank, l, target, "bias"), 1, t.experts + 1)->values.back() = 3;
    }
    fill(low_rank_name(l, "projection"), kRank, t.hidden);
    fill(low_rank_name(l, "shift"), 1, kRank);
    fill(low_rank_name(l, "mix"), kUnits, kRank);
    fill(low_rank_name(l, "mix_bias"), 1, kUnits);
  }
  t.tensors["forest.nodes"] = {3, 4, {0, 0.f, 1, 1, -1, 0.1f, 0, 0, -1, 0.8f, 0, 0}};
  fill("history.mean", t.layers, t.experts);
  return t;
}

}  // namespace ef::testing
