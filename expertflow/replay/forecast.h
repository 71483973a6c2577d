// Who says in a replay which experts come next. The rows of the table need the trace alone; engine/trace_predictions.h
// has those that apply a model's routers or a trained predictor.
#pragma once
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "expertflow/replay/workload.h"

namespace ef {

class Forecast {
 public:
  virtual ~Forecast() = default;
  /// Probabilities, [experts of target], that the event of `target` in step `step` asks for each; after the router of
  /// `layer` has chosen (-1: before the step's first layer), layer < target. Nothing at all: no opinion, all zero.
  virtual void predict(size_t step, LayerId layer, LayerId target, std::span<float> probabilities) = 0;
  /// What the step's layer really asked for, in order.
  virtual void observe(size_t /*step*/, LayerId /*layer*/) {}
};

struct ForecastInfo {
  std::string_view name, summary;
  std::unique_ptr<Forecast> (*make)(const Workload&);
};
std::span<const ForecastInfo> forecasts();
/// ConfigError that lists the known names.
std::unique_ptr<Forecast> make_forecast(std::string_view name, const Workload& workload);

}  // namespace ef
