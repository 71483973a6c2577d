// Runs a fixture's prompt and shows every look of its steps to a test, as an engine shows them to a predictor.
#pragma once
#include <functional>

#include "expertflow/predict/predictor.h"
#include "tests/engine/model_rig.h"

namespace ef::testing {

class Looks final : public StepObserver {
 public:
  std::function<void(const StepStart&)> start = [](const StepStart&) {};
  std::function<void(const StepView&)> look;

  void on_step(std::span<const TokenId> tokens, std::span<const int32_t> sequences,
               std::span<const int32_t> positions) override {
    start({tokens, sequences, positions});
  }
  bool wants_residual() const override { return true; }
  void on_residual(LayerId layer, bool routed, int64_t tokens, const float* residual) override {
    residual_ = residual;
    if (routed) return;
    StepView view;
    view.point = StepPoint::kLayerInput, view.layer = layer, view.rows = tokens, view.residual = residual;
    look(view);
  }
  void on_routing(LayerId layer, const float* x, const float* logits, const RoutingView& routing) override {
    StepView view;
    view.layer = layer, view.rows = routing.tokens;
    view.residual = residual_, view.x = x, view.logits = logits, view.routing = routing;
    view.chosen = {routing.ids, size_t(routing.tokens) * size_t(routing.top_k)};
    look(view);
  }

 private:
  const float* residual_ = nullptr;
};

}  // namespace ef::testing
