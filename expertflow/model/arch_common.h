// Pieces of tensor tables that several architectures share.
#pragma once
#include <array>

#include "expertflow/model/arch.h"

namespace ef {

template <size_t... N>
constexpr auto join(const std::array<TensorSpec, N>&... parts) {
  std::array<TensorSpec, (N + ...)> out{};
  size_t at = 0;
  auto append = [&](const auto& part) {
    for (const TensorSpec& spec : part) out[at++] = spec;
  };
  (append(parts), ...);
  return out;
}

using In = TensorSpec::In;

inline constexpr bool has_qkv_bias(const Config& c) { return c.qkv_bias; }
inline constexpr bool has_o_bias(const Config& c) { return c.o_bias; }
inline constexpr bool has_selection_bias(const Config& c) { return c.selection_bias; }

/// Embedding, head, norms, for models without biases on them.
inline constexpr std::array kModelTensors = {
    TensorSpec{Role::kEmbed, "model.embed_tokens.weight", "token_embd.weight", Dim::kVocab, Dim::kHidden, false,
               In::kModel},
    TensorSpec{Role::kFinalNorm, "model.norm.weight", "output_norm.weight", Dim::kNone, Dim::kHidden, false,
               In::kModel},
    TensorSpec{Role::kHead, "lm_head.weight", "output.weight", Dim::kVocab, Dim::kHidden, false, In::kModel},
    TensorSpec{Role::kRopeFreqs, nullptr, "rope_freqs.weight", Dim::kNone, Dim::kRopePairs, true, In::kModel},
    TensorSpec{Role::kAttnNorm, "model.layers.{l}.input_layernorm.weight", "blk.{l}.attn_norm.weight", Dim::kNone,
               Dim::kHidden},
    TensorSpec{Role::kFfnNorm, "model.layers.{l}.post_attention_layernorm.weight",
               "blk.{l}.ffn_norm.weight|blk.{l}.post_attention_norm.weight", Dim::kNone, Dim::kHidden},
};

inline constexpr std::array kAttention = {
    TensorSpec{Role::kQ, "model.layers.{l}.self_attn.q_proj.weight", "blk.{l}.attn_q.weight", Dim::kQ, Dim::kHidden},
    TensorSpec{Role::kK, "model.layers.{l}.self_attn.k_proj.weight", "blk.{l}.attn_k.weight", Dim::kKv, Dim::kHidden},
    TensorSpec{Role::kV, "model.layers.{l}.self_attn.v_proj.weight", "blk.{l}.attn_v.weight", Dim::kKv, Dim::kHidden},
    TensorSpec{Role::kO, "model.layers.{l}.self_attn.o_proj.weight", "blk.{l}.attn_output.weight", Dim::kHidden,
               Dim::kAttnOut},
};

inline constexpr std::array kAttentionBiases = {
    TensorSpec{Role::kQBias, "model.layers.{l}.self_attn.q_proj.bias", "blk.{l}.attn_q.bias", Dim::kNone, Dim::kQ,
               false, In::kEveryLayer, has_qkv_bias},
    TensorSpec{Role::kKBias, "model.layers.{l}.self_attn.k_proj.bias", "blk.{l}.attn_k.bias", Dim::kNone, Dim::kKv,
               false, In::kEveryLayer, has_qkv_bias},
    TensorSpec{Role::kVBias, "model.layers.{l}.self_attn.v_proj.bias", "blk.{l}.attn_v.bias", Dim::kNone, Dim::kKv,
               false, In::kEveryLayer, has_qkv_bias},
    TensorSpec{Role::kOBias, "model.layers.{l}.self_attn.o_proj.bias", "blk.{l}.attn_output.bias", Dim::kNone,
               Dim::kHidden, false, In::kEveryLayer, has_o_bias},
};

inline constexpr std::array kQkNormPerHead = {
    TensorSpec{Role::kQNorm, "model.layers.{l}.self_attn.q_norm.weight", "blk.{l}.attn_q_norm.weight", Dim::kNone,
               Dim::kHeadDim, false, In::kEveryLayer, [](const Config& c) { return c.qk_norm == QkNorm::kPerHead; }},
    TensorSpec{Role::kKNorm, "model.layers.{l}.self_attn.k_norm.weight", "blk.{l}.attn_k_norm.weight", Dim::kNone,
               Dim::kHeadDim, false, In::kEveryLayer, [](const Config& c) { return c.qk_norm == QkNorm::kPerHead; }},
};

inline constexpr std::array kDenseFfn = {
    TensorSpec{Role::kDenseGate, "model.layers.{l}.mlp.gate_proj.weight", "blk.{l}.ffn_gate.weight", Dim::kDenseFfn,
               Dim::kHidden, false, In::kDenseLayers},
    TensorSpec{Role::kDenseUp, "model.layers.{l}.mlp.up_proj.weight", "blk.{l}.ffn_up.weight", Dim::kDenseFfn,
               Dim::kHidden, false, In::kDenseLayers},
    TensorSpec{Role::kDenseDown, "model.layers.{l}.mlp.down_proj.weight", "blk.{l}.ffn_down.weight", Dim::kHidden,
               Dim::kDenseFfn, false, In::kDenseLayers},
};

inline constexpr std::array kRouterMlpGate = {
    TensorSpec{Role::kRouter, "model.layers.{l}.mlp.gate.weight", "blk.{l}.ffn_gate_inp.weight", Dim::kExperts,
               Dim::kHidden, false, In::kSparseLayers},
};

inline constexpr std::array kSelectionBias = {
    TensorSpec{Role::kSelectionBias, "model.layers.{l}.mlp.gate.e_score_correction_bias",
               "blk.{l}.exp_probs_b.bias|blk.{l}.exp_probs_b", Dim::kNone, Dim::kExperts, false, In::kSparseLayers,
               has_selection_bias},
};

/// DeepSeek and GLM: shared experts as one FFN.
inline constexpr std::array kSharedExperts = {
    TensorSpec{Role::kSharedGate, "model.layers.{l}.mlp.shared_experts.gate_proj.weight",
               "blk.{l}.ffn_gate_shexp.weight", Dim::kSharedFfn, Dim::kHidden, false, In::kSparseLayers},
    TensorSpec{Role::kSharedUp, "model.layers.{l}.mlp.shared_experts.up_proj.weight", "blk.{l}.ffn_up_shexp.weight",
               Dim::kSharedFfn, Dim::kHidden, false, In::kSparseLayers},
    TensorSpec{Role::kSharedDown, "model.layers.{l}.mlp.shared_experts.down_proj.weight",
               "blk.{l}.ffn_down_shexp.weight", Dim::kHidden, Dim::kSharedFfn, false, In::kSparseLayers},
};

/// gate_proj, up_proj, down_proj for each expert, or fused over experts (Hugging Face transformers 5).
inline constexpr std::array kHfMlpExperts = {
    ExpertSpec{ExpertFileLayout::kSeparate, "model.layers.{l}.mlp.experts.{e}.gate_proj.weight",
               "model.layers.{l}.mlp.experts.{e}.up_proj.weight", "model.layers.{l}.mlp.experts.{e}.down_proj.weight"},
    ExpertSpec{ExpertFileLayout::kGateUpRows, "model.layers.{l}.mlp.experts.gate_up_proj", nullptr,
               "model.layers.{l}.mlp.experts.down_proj"},
};
/// Mixtral's names: w1 is the gate, w3 up, w2 down.
inline constexpr std::array kHfBlockSparseExperts = {
    ExpertSpec{ExpertFileLayout::kSeparate, "model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight",
               "model.layers.{l}.block_sparse_moe.experts.{e}.w3.weight",
               "model.layers.{l}.block_sparse_moe.experts.{e}.w2.weight"},
    ExpertSpec{ExpertFileLayout::kGateUpRows,
               "model.layers.{l}.mlp.experts.gate_up_proj|model.layers.{l}.block_sparse_moe.experts.gate_up_proj",
               nullptr, "model.layers.{l}.mlp.experts.down_proj|model.layers.{l}.block_sparse_moe.experts.down_proj"},
};
/// Stacked, gate and up fused (gate rows first), or one tensor an expert (files of 2024 and before).
inline constexpr std::array kGgufExperts = {
    ExpertSpec{ExpertFileLayout::kSeparate, "blk.{l}.ffn_gate_exps.weight", "blk.{l}.ffn_up_exps.weight",
               "blk.{l}.ffn_down_exps.weight"},
    ExpertSpec{ExpertFileLayout::kGateUpRows, "blk.{l}.ffn_gate_up_exps.weight", nullptr,
               "blk.{l}.ffn_down_exps.weight"},
    ExpertSpec{ExpertFileLayout::kSeparate, "blk.{l}.ffn_gate.{e}.weight", "blk.{l}.ffn_up.{e}.weight",
               "blk.{l}.ffn_down.{e}.weight"},
};

/// Buffers that old files carry and that are computed from the config.
inline constexpr std::array<std::string_view, 2> kIgnored = {"rotary_emb.inv_freq", "rope.freqs"};

}  // namespace ef
