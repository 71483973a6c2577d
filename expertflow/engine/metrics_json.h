// What the experts' tiers, the predictor and the governor have done, as JSON and as lines for people.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "expertflow/engine/engine.h"

namespace ef {

/// {"prediction_hit_rate": ..., ..., "health": [...], "prediction": {...}, "prefetch": {...}}; null where there is
/// none.
nlohmann::ordered_json metrics_json(const ExpertMetrics& metrics, const ExpertStats& stats);
std::vector<std::string> metrics_lines(const ExpertMetrics& metrics, const ExpertStats& stats);

}  // namespace ef
