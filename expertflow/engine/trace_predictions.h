// What a model's predictor says of every layer of a trace: the trace's tokens are run through the model again, and at
// each look the predictor is asked, as a run would ask it. Made once, read by many replays.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "expertflow/engine/engine.h"
#include "expertflow/predict/predictor.h"
#include "expertflow/replay/forecast.h"

namespace ef {

class TracePredictions {
 public:
  /// The engine's model must be the trace's: ConfigError if layers, experts or top_k differ, or if a request's rows do
  /// not begin at position 0 and go on without gaps. horizon: layers ahead at most.
  TracePredictions(Engine& engine, Predictor& predictor, const Trace& trace, int horizon);
  /// For workloads of this trace; both must outlive the result.
  std::unique_ptr<Forecast> forecast(const Workload& workload) const;

 private:
  friend class TableForecast;
  size_t place(size_t row, LayerId look, LayerId target) const {
    return ((row * size_t(layers_ + 1) + size_t(look + 1)) * size_t(horizon_) + size_t(target - look - 1)) *
           size_t(experts_);
  }
  int layers_ = 0, horizon_ = 0, experts_ = 0;
  std::vector<size_t> first_row_;  // by step of the trace
  std::vector<uint8_t> table_;     // [rows, looks from before layer 0 on, distances, experts] probability * 255
};

}  // namespace ef
