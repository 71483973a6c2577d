// From flags to what looking ahead goes by.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "expertflow/engine/engine_options.h"
#include "expertflow/engine/foresight.h"

namespace ef {

/// Layers; 0: none, nothing: as the link needs. ConfigError naming the flag otherwise.
std::optional<int> parse_horizon(const std::string& text);

/// Bytes a second; 0 for "none". ConfigError naming the flag otherwise.
double parse_io_limit(const std::string& text);

/// What --prediction-topk and --layer-wise-config say about candidates. ConfigError naming flag, field and layer.
///   {"default": {"mass": 0.9}, "layers": {"0": {"topk": 8}, "3-11": {"mass": 0.8, "least_probability": 0.2}}}
///   {"*": {"mass": 0.9}, "0": {"prediction_topk": 8}}       the same, shorter
/// mass, least_probability: CandidateRule. prediction_topk or topk: candidates at most; 0: the layer is not guessed.
CandidateRules candidate_rules(const EngineOptions& options, const Config& config);

/// Layers, dense ones among them, that hold the next so many MoE layers at most.
int layers_holding(int moe_layers, const Config& config);

/// pool_bytes: of the fast tier. The governor is off where nothing is to be looked ahead for.
ForesightOptions foresight_options(const EngineOptions& options, const Config& config, const CacheGeometry& geometry,
                                   uint64_t pool_bytes);

}  // namespace ef
