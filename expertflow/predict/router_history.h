// What a sequence's earlier tokens made of each layer's router: the logits of the token before, and a decaying mean of
// all before it. Routing repeats from token to token, so this is worth as much at a distance as the stream itself.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "expertflow/predict/step_view.h"
#include "expertflow/predict/trained.h"

namespace ef {

class RouterHistory {
 public:
  static constexpr float kDecay = 0.8f;
  static constexpr int kParts = 4;  ///< of features(), each [experts]

  /// mean: [layers, experts], taken off the logits, so that nothing known is zero.
  RouterHistory(int layers, int experts, const TrainedTensor& mean);
  void begin_step(const StepStart& start);
  /// Of a look at a routed layer whose logits the host can read.
  void observe(const StepView& view);
  /// What is known of a row's sequence for a target of a look at `layer`: the token before at the target's router, at
  /// the layer before it, at the layer after it, and the decaying mean at the target. Routers that this token has
  /// passed already are left out (zero): the stream says it all. out: [kParts * experts].
  void features(int64_t row, LayerId layer, LayerId target, float* out) const;

 private:
  float* last(size_t slot, LayerId layer) {
    return &memory_[((slot * 2) * size_t(layers_) + size_t(layer)) * size_t(experts_)];
  }
  float* mean(size_t slot, LayerId layer) { return last(slot, layer) + size_t(layers_) * size_t(experts_); }
  const float* last(size_t slot, LayerId layer) const { return const_cast<RouterHistory*>(this)->last(slot, layer); }

  const int layers_, experts_;
  std::vector<float> center_;                    // [layers, experts]
  std::unordered_map<int32_t, size_t> slot_of_;  // by sequence
  std::vector<float> memory_;                    // [slots][last, mean][layers, experts]
  std::vector<size_t> row_slot_;                 // of the step's rows
};

}  // namespace ef
