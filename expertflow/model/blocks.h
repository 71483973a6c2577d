// The blocks that forward() is made of. Each reads state.x, and adds its output to it.
#pragma once
#include <optional>

#include "expertflow/model/model.h"

namespace ef {

/// Norm, attention (grouped-query, or latent in its absorbed form), residual.
void attention_block(StepContext& context, LayerId layer, const BatchView& batch);
/// Norm, dense FFN or MoE with shared experts, residual.
void ffn_block(StepContext& context, LayerId layer, int64_t rows);

/// Both as one op of the backend, where the layer is of the kind that it describes and nothing else is to be done.
std::optional<LayerArgs> whole_layer(StepContext& context, LayerId layer, const BatchView& batch);

/// Shows the residual stream to the observer, if it wants to see that (StepObserver::on_residual).
void observe_residual(StepContext& context, LayerId layer, bool routed, int64_t rows);

/// What of whole_layer() attention is: all but route and experts.
LayerArgs grouped_query_args(StepContext& context, LayerId layer, const BatchView& batch);

/// A layer's router over rows of normalised input: what ffn_block() does, for whoever wants to know a choice earlier.
struct RouteRows {
  int64_t rows = 0;
  const float* normed = nullptr;  ///< [rows, hidden]
  float* logits = nullptr;        ///< [rows, experts]
  int32_t* ids = nullptr;         ///< [rows, top_k], rank order
  float* weights = nullptr;       ///< [rows, top_k]
};
void route_rows(const Config& config, const LayerWeights& layer, Backend& backend, Stream& stream, const RouteRows& r);

}  // namespace ef
