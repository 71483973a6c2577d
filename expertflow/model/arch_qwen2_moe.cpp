// Qwen1.5-MoE and Qwen2-MoE: softmax over all experts without renormalisation, a shared expert behind a sigmoid gate.
#include "expertflow/model/arch_common.h"
#include "expertflow/model/gguf_config.h"
#include "expertflow/model/hf_config.h"

namespace ef {

namespace {

constexpr std::array kShared = {
    TensorSpec{Role::kSharedGate, "model.layers.{l}.mlp.shared_expert.gate_proj.weight",
               "blk.{l}.ffn_gate_shexp.weight", Dim::kSharedFfn, Dim::kHidden, false, In::kSparseLayers},
    TensorSpec{Role::kSharedUp, "model.layers.{l}.mlp.shared_expert.up_proj.weight", "blk.{l}.ffn_up_shexp.weight",
               Dim::kSharedFfn, Dim::kHidden, false, In::kSparseLayers},
    TensorSpec{Role::kSharedDown, "model.layers.{l}.mlp.shared_expert.down_proj.weight",
               "blk.{l}.ffn_down_shexp.weight", Dim::kHidden, Dim::kSharedFfn, false, In::kSparseLayers},
    TensorSpec{Role::kSharedExpertGate, "model.layers.{l}.mlp.shared_expert_gate.weight",
               "blk.{l}.ffn_gate_inp_shexp.weight", Dim::kOne, Dim::kHidden, false, In::kSparseLayers},
};
constexpr auto kTensors = join(kModelTensors, kAttention, kAttentionBiases, kDenseFfn, kRouterMlpGate, kShared);

Config from_hf(const nlohmann::json& json, const nlohmann::json& generation) {
  HfJson config(json, "config.json");
  Config out = hf_common("qwen2_moe", config, generation, {});
  out.router.renormalise = config.boolean_or("norm_topk_prob", false);
  out.expert_ffn = config.integer("moe_intermediate_size");
  out.shared_ffn = config.integer("shared_expert_intermediate_size");
  out.shared_gate = out.shared_ffn > 0;
  out.dense_ffn = config.integer_or("intermediate_size", 0);
  out.qkv_bias = config.boolean_or("qkv_bias", true);
  hf_sparse_step(out, config);
  if (config.boolean_or("use_sliding_window", false))
    hf_windows(out, config, config.integer_or("sliding_window", 4096), config.integer_or("max_window_layers", 28));
  return out;
}

Config from_gguf(const GgufMetadata& metadata, const TensorDirectory& directory) {
  GgufKeys keys(metadata);
  Config out = gguf_common("qwen2_moe", keys, directory, {});
  gguf_router_weights(out, keys, false);
  out.dense_ffn = keys.integer_or("feed_forward_length", 0);
  // Early files lack both widths: one shared expert as wide as the top_k experts together.
  out.expert_ffn = keys.has("expert_feed_forward_length") ? keys.integer("expert_feed_forward_length")
                                                          : keys.integer("feed_forward_length") / out.router.top_k;
  out.shared_ffn = keys.has("expert_shared_feed_forward_length") ? keys.integer("expert_shared_feed_forward_length")
                                                                 : keys.integer("feed_forward_length");
  out.shared_gate = out.shared_ffn > 0;
  return out;
}

constexpr std::string_view kHfTypes[] = {"qwen2_moe"};
constexpr std::string_view kGgufArchs[] = {"qwen2moe"};

}  // namespace

Architecture qwen2_moe() {
  return {"qwen2_moe", kHfTypes, kGgufArchs, from_hf, from_gguf, kTensors, kHfMlpExperts, kGgufExperts, kIgnored};
}

}  // namespace ef
