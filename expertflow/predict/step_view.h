// What a predictor is shown of a step. Pointers are in the backend's memory unless stated, and valid during the call.
#pragma once
#include <cstdint>
#include <span>

#include "expertflow/base/ids.h"
#include "expertflow/model/experts.h"

namespace ef {

/// Two looks at each layer, in the order of the step.
enum class StepPoint : uint8_t {
  kLayerInput,  ///< before attention: the residual stream alone. Of layer 0: the tokens' embeddings
  kRouted       ///< the router of a sparse layer has chosen, its experts have not run
};

/// The rows of a step, known before its first layer. The host's memory.
struct StepStart {
  std::span<const TokenId> tokens;     ///< [rows]
  std::span<const int32_t> sequences;  ///< [rows] number of each row's sequence; rows of one are neighbours, in order
  std::span<const int32_t> positions;  ///< [rows] in their sequence; 0 begins a new one under that number
  int64_t rows() const { return int64_t(tokens.size()); }
};

struct StepView {
  StepPoint point = StepPoint::kRouted;
  LayerId layer = 0;
  int64_t rows = 0;
  const float* residual = nullptr;  ///< [rows, hidden] the stream at this point, not normalised
  // kRouted
  const float* x = nullptr;       ///< [rows, hidden] normalised input of the MoE block
  const float* logits = nullptr;  ///< [rows, experts] of the layer's router
  RoutingView routing;
  std::span<const int32_t> chosen;  ///< [rows, top_k] routing.ids on the host; empty where the host does not see them
};

}  // namespace ef
