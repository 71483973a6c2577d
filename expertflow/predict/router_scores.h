// What a router says of an event besides its choice: who else was nearly chosen. Routing repeats from token to token,
// so the near misses of this one are among the likely of the next (what score-aware caches go by).
#pragma once
#include <span>
#include <utility>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/model/config.h"

namespace ef {

/// logits -> probabilities, both [experts] of one row: softmax or sigmoid, as the router scores. Biases that only
/// select are no part of it.
void router_probabilities(const RouterConfig& router, const float* logits, float* probabilities);

class RouterScores {
 public:
  /// router must outlive it.
  explicit RouterScores(const RouterConfig& router) : router_(router) {}
  /// The mean over rows of each row's 2 top_k largest probabilities; experts ascending. logits: [rows, experts] on the
  /// host. Valid until the next call.
  std::span<const std::pair<ExpertId, float>> of(const float* logits, int64_t rows);

 private:
  const RouterConfig& router_;
  std::vector<float> row_, sum_;
  std::vector<ExpertId> order_;
  std::vector<std::pair<ExpertId, float>> probable_;
};

}  // namespace ef
