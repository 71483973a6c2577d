// Qwen3-MoE: norms on each head of q and k, softmax with renormalisation, dense layers between sparse ones.
#include "expertflow/model/arch_common.h"
#include "expertflow/model/gguf_config.h"
#include "expertflow/model/hf_config.h"

namespace ef {

namespace {

constexpr auto kTensors = join(kModelTensors, kAttention, kAttentionBiases, kQkNormPerHead, kDenseFfn, kRouterMlpGate);

Config from_hf(const nlohmann::json& json, const nlohmann::json& generation) {
  HfJson config(json, "config.json");
  Config out = hf_common("qwen3_moe", config, generation, {});
  out.qk_norm = QkNorm::kPerHead;
  out.router.renormalise = config.boolean_or("norm_topk_prob", false);
  out.expert_ffn = config.integer("moe_intermediate_size");
  out.dense_ffn = config.integer_or("intermediate_size", 0);
  out.qkv_bias = out.o_bias = config.boolean_or("attention_bias", false);
  hf_sparse_step(out, config);
  if (config.boolean_or("use_sliding_window", false))
    hf_windows(out, config, config.integer_or("sliding_window", 4096));
  return out;
}

Config from_gguf(const GgufMetadata& metadata, const TensorDirectory& directory) {
  GgufKeys keys(metadata);
  Config out = gguf_common("qwen3_moe", keys, directory, {});
  out.qk_norm = QkNorm::kPerHead;
  gguf_router_weights(out, keys, true);
  out.expert_ffn = keys.integer("expert_feed_forward_length");
  out.dense_ffn = keys.integer_or("feed_forward_length", 0);
  return out;
}

constexpr std::string_view kHfTypes[] = {"qwen3_moe"};
constexpr std::string_view kGgufArchs[] = {"qwen3moe"};

}  // namespace

Architecture qwen3_moe() {
  return {"qwen3_moe", kHfTypes, kGgufArchs, from_hf, from_gguf, kTensors, kHfMlpExperts, kGgufExperts, kIgnored};
}

}  // namespace ef
