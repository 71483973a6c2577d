// The slope of RouterOdds that says how sure a guess is: the one with the smallest cross entropy on some samples.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "expertflow/predict/router_odds.h"

namespace ef {

class SlopeFit {
 public:
  explicit SlopeFit(const RouterConfig& router) : odds_(router) {
    p_.resize(size_t(router.experts)), truth_.resize(size_t(router.experts));
  }
  /// guessed, real: [experts] logits of one row; selection_bias: [experts] or null.
  void add(const float* guessed, const float* real, const float* selection_bias) {
    odds_.row(real, selection_bias, nullptr, 1.f, truth_.data());
    for (int i = 0; i < kSlopes; ++i) {
      odds_.row(guessed, selection_bias, nullptr, slope_of(i), p_.data());
      for (size_t e = 0; e < p_.size(); ++e)
        loss_[size_t(i)] -= std::log(std::max(truth_[e] > 0.5f ? double(p_[e]) : 1 - double(p_[e]), 1e-9));
    }
  }
  float best() const { return slope_of(int(std::min_element(loss_.begin(), loss_.end()) - loss_.begin())); }

 private:
  static constexpr int kSlopes = 24;
  static float slope_of(int i) { return 0.5f * std::pow(1.2f, float(i)); }  // to 33
  RouterOdds odds_;
  std::array<double, kSlopes> loss_{};
  std::vector<float> p_, truth_;
};

}  // namespace ef
