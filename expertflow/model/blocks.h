// The blocks that forward() is made of. Each reads state.x, and adds its output to it.
#pragma once
#include "expertflow/model/model.h"

namespace ef {

/// Norm, attention (grouped-query, or latent in its absorbed form), residual.
void attention_block(StepContext& context, LayerId layer, const BatchView& batch);
/// Norm, dense FFN or MoE with shared experts, residual.
void ffn_block(StepContext& context, LayerId layer, int64_t rows);

}  // namespace ef
