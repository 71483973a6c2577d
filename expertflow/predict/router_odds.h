// From a router's logits to chances of being chosen.
#pragma once
#include <cstdint>
#include <vector>

#include "expertflow/model/config.h"

namespace ef {

/// A router that is asked early sees an input that will still change: its logits move by some share of their spread.
/// The chance that an expert is among the chosen is taken as a logistic function of its distance from the edge between
/// the last chosen and the first that is not, in units of the row's standard deviation.
class RouterOdds {
 public:
  /// selection_bias: [experts] of the layer's router on the host, or null.
  explicit RouterOdds(const RouterConfig& router) : router_(router) {}
  /// logits [experts], chosen [top_k] of one row (null: the largest) -> probabilities [experts]. The chosen are all
  /// above one half, and nothing else is: whatever ranks by probability gives the router's own set first. slope: of the
  /// logistic function, per standard deviation. A NaN logit gives probability 0 unless chosen.
  void row(const float* logits, const float* selection_bias, const int32_t* chosen, float slope, float* probabilities);

 private:
  const RouterConfig& router_;
  std::vector<float> score_;
  std::vector<int32_t> order_;
};

}  // namespace ef
