// Several observers of a step as one.
#pragma once
#include <initializer_list>
#include <vector>

#include "expertflow/model/model.h"

namespace ef {

class Observers final : public StepObserver {
 public:
  /// Null ones are left out.
  Observers(std::initializer_list<StepObserver*> all) {
    for (StepObserver* one : all)
      if (one) all_.push_back(one);
  }
  bool empty() const { return all_.empty(); }

  void on_step(std::span<const TokenId> tokens, std::span<const int32_t> sequences,
               std::span<const int32_t> positions) override {
    for (StepObserver* one : all_) one->on_step(tokens, sequences, positions);
  }
  void on_layer(LayerId layer) override {
    for (StepObserver* one : all_) one->on_layer(layer);
  }
  bool wants_residual() const override {
    for (const StepObserver* one : all_)
      if (one->wants_residual()) return true;
    return false;
  }
  void on_residual(LayerId layer, bool routed, int64_t tokens, const float* residual) override {
    for (StepObserver* one : all_)
      if (one->wants_residual()) one->on_residual(layer, routed, tokens, residual);
  }
  void on_routing(LayerId layer, const float* x, const float* logits, const RoutingView& routing) override {
    for (StepObserver* one : all_) one->on_routing(layer, x, logits, routing);
  }
  void on_step_end() override {
    for (StepObserver* one : all_) one->on_step_end();
  }

 private:
  std::vector<StepObserver*> all_;
};

}  // namespace ef
