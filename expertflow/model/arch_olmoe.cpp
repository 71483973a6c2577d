// OLMoE: norms over all of q and k, softmax over all experts without renormalisation, optional clipping of q, k and v.
#include "expertflow/model/arch_common.h"
#include "expertflow/model/gguf_config.h"
#include "expertflow/model/hf_config.h"

namespace ef {

namespace {

constexpr std::array kNorms = {
    TensorSpec{Role::kQNorm, "model.layers.{l}.self_attn.q_norm.weight", "blk.{l}.attn_q_norm.weight", Dim::kNone,
               Dim::kQ},
    TensorSpec{Role::kKNorm, "model.layers.{l}.self_attn.k_norm.weight", "blk.{l}.attn_k_norm.weight", Dim::kNone,
               Dim::kKv},
};
constexpr auto kTensors = join(kModelTensors, kAttention, kAttentionBiases, kNorms, kRouterMlpGate);

Config from_hf(const nlohmann::json& json, const nlohmann::json& generation) {
  HfJson config(json, "config.json");
  Config out = hf_common("olmoe", config, generation, {.norm_eps = 1e-5});
  out.qk_norm = QkNorm::kWhole;
  out.router.renormalise = config.boolean_or("norm_topk_prob", false);
  out.expert_ffn = config.integer("intermediate_size");
  out.clip_qkv = float(config.number_or("clip_qkv", 0));
  out.qkv_bias = out.o_bias = config.boolean_or("attention_bias", false);
  return out;
}

Config from_gguf(const GgufMetadata& metadata, const TensorDirectory& directory) {
  GgufKeys keys(metadata);
  Config out = gguf_common("olmoe", keys, directory, {});
  out.qk_norm = QkNorm::kWhole;
  gguf_router_weights(out, keys, false);
  out.expert_ffn =
      keys.integer(keys.has("expert_feed_forward_length") ? "expert_feed_forward_length" : "feed_forward_length");
  out.clip_qkv = float(keys.number_or("attention.clamp_kqv", 0));
  return out;
}

constexpr std::string_view kHfTypes[] = {"olmoe"};
constexpr std::string_view kGgufArchs[] = {"olmoe"};

}  // namespace

Architecture olmoe() {
  return {"olmoe", kHfTypes, kGgufArchs, from_hf, from_gguf, kTensors, kHfMlpExperts, kGgufExperts, kIgnored};
}

}  // namespace ef
