// The blocks that forward() is made of. Each reads state.x, and adds its output to it.
#pragma once
#include "expertflow/model/model.h"

namespace ef {

/// Norm, attention (grouped-query, or latent in its absorbed form), residual.
void attention_block(StepContext& context, LayerId layer, const BatchView& batch);
/// Norm, dense FFN or MoE with shared experts, residual.
void ffn_block(StepContext& context, LayerId layer, int64_t rows);

/// Shows the residual stream to the observer, if it wants to see that (StepObserver::on_residual).
void observe_residual(StepContext& context, LayerId layer, bool routed, int64_t rows);

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
