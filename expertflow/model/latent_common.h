// What DeepSeek-V2 and V3 share: latent attention and its tensors.
#pragma once
#include "expertflow/model/arch_common.h"
#include "expertflow/model/gguf_config.h"
#include "expertflow/model/hf_config.h"

namespace ef {

inline constexpr std::array kLatentAttention = {
    TensorSpec{Role::kQ, "model.layers.{l}.self_attn.q_proj.weight", "blk.{l}.attn_q.weight", Dim::kQ, Dim::kHidden,
               false, In::kEveryLayer, [](const Config& c) { return c.latent->q_lora == 0; }},
    TensorSpec{Role::kQA, "model.layers.{l}.self_attn.q_a_proj.weight", "blk.{l}.attn_q_a.weight", Dim::kQLora,
               Dim::kHidden},
    TensorSpec{Role::kQANorm, "model.layers.{l}.self_attn.q_a_layernorm.weight", "blk.{l}.attn_q_a_norm.weight",
               Dim::kNone, Dim::kQLora},
    TensorSpec{Role::kQB, "model.layers.{l}.self_attn.q_b_proj.weight", "blk.{l}.attn_q_b.weight", Dim::kQ,
               Dim::kQLora},
    TensorSpec{Role::kKvA, "model.layers.{l}.self_attn.kv_a_proj_with_mqa.weight", "blk.{l}.attn_kv_a_mqa.weight",
               Dim::kKvA, Dim::kHidden},
    TensorSpec{Role::kKvANorm, "model.layers.{l}.self_attn.kv_a_layernorm.weight", "blk.{l}.attn_kv_a_norm.weight",
               Dim::kNone, Dim::kKvLora},
    TensorSpec{Role::kKvB, "model.layers.{l}.self_attn.kv_b_proj.weight", "blk.{l}.attn_kv_b.weight", Dim::kKvB,
               Dim::kKvLora, false, In::kEveryLayer, [](const Config& c) { return !c.split_kv_b; }},
    TensorSpec{Role::kKB, nullptr, "blk.{l}.attn_k_b.weight", Dim::kKB, Dim::kNope, false, In::kEveryLayer,
               [](const Config& c) { return c.split_kv_b; }},
    TensorSpec{Role::kVB, nullptr, "blk.{l}.attn_v_b.weight", Dim::kVB, Dim::kKvLora, false, In::kEveryLayer,
               [](const Config& c) { return c.split_kv_b; }},
    TensorSpec{Role::kO, "model.layers.{l}.self_attn.o_proj.weight", "blk.{l}.attn_output.weight", Dim::kHidden,
               Dim::kAttnOut},
};
inline constexpr auto kLatentTensors =
    join(kModelTensors, kLatentAttention, kDenseFfn, kRouterMlpGate, kSelectionBias, kSharedExperts);

/// attn_kv_b: files that keep the fused tensor beside its two halves.
inline constexpr std::array<std::string_view, 3> kLatentIgnored = {"rotary_emb.inv_freq", "rope.freqs",
                                                                   ".attn_kv_b.weight"};

Config latent_from_hf(std::string_view arch, const HfJson& config, const nlohmann::json& generation_config,
                      bool interleaved, int default_leading_dense);
Config latent_from_gguf(std::string_view arch, const GgufKeys& keys, const TensorDirectory& directory);

/// True for files whose router is DeepSeek-V3's: sigmoid by key, or by the bias that only such routers have.
bool is_deepseek_v3_gguf(const GgufMetadata& metadata, const TensorDirectory& directory);

}  // namespace ef
