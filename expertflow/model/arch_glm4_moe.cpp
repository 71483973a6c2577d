// GLM-4.5 (MoE): partial rotary, optional norms on heads of q and k, DeepSeek-V3's router, shared experts.
#include "expertflow/base/errors.h"
#include "expertflow/model/arch_common.h"
#include "expertflow/model/gguf_config.h"
#include "expertflow/model/hf_config.h"

namespace ef {

namespace {

constexpr auto kTensors = join(kModelTensors, kAttention, kAttentionBiases, kQkNormPerHead, kDenseFfn, kRouterMlpGate,
                               kSelectionBias, kSharedExperts);

int shared_width(const std::string& where, int count, int width) {
  int64_t shared = int64_t(count) * width;
  EF_CHECK(shared >= 0 && shared < (1 << 30), ModelError, "{}: {} shared experts of {} are too many", where, count,
           width);
  return int(shared);
}

Config from_hf(const nlohmann::json& json, const nlohmann::json& generation) {
  HfJson config(json, "config.json");
  Config out = hf_common("glm4_moe", config, generation, {.partial_rotary = 0.5, .norm_eps = 1e-5});
  hf_deepseek_router(out, config, {"sigmoid", "noaux_tc", true, 1.0, 1, 1});
  out.qk_norm = config.boolean_or("use_qk_norm", false) ? QkNorm::kPerHead : QkNorm::kNone;
  out.qkv_bias = config.boolean_or("attention_bias", false);
  out.expert_ffn = config.integer("moe_intermediate_size");
  out.dense_ffn = config.integer_or("intermediate_size", 0);
  out.shared_ffn = shared_width(config.where(), config.integer_or("n_shared_experts", 1), out.expert_ffn);
  hf_leading_dense(out, config, 1);
  return out;
}

Config from_gguf(const GgufMetadata& metadata, const TensorDirectory& directory) {
  GgufKeys keys(metadata);
  Config out = gguf_common("glm4_moe", keys, directory, {});
  out.router.score = gguf_router_score(keys, RouterScore::kSigmoid, out.notes);
  out.router.groups = keys.integer_or("expert_group_count", 1);
  out.router.top_groups = keys.integer_or("expert_group_used_count", out.router.groups);
  out.router.group_score = GroupScore::kSumOfTop2;
  out.router.renormalise_eps = 1e-20f;
  gguf_router_weights(out, keys, true);
  out.qk_norm = directory.find("blk.0.attn_q_norm.weight") ? QkNorm::kPerHead : QkNorm::kNone;
  out.expert_ffn = keys.integer("expert_feed_forward_length");
  out.dense_ffn = keys.integer_or("feed_forward_length", 0);
  out.shared_ffn = shared_width(keys.file(), keys.integer_or("expert_shared_count", 0), out.expert_ffn);
  gguf_leading_dense(out, keys);
  return out;
}

constexpr std::string_view kHfTypes[] = {"glm4_moe"};
constexpr std::string_view kGgufArchs[] = {"glm4moe"};

}  // namespace

Architecture glm4_moe() {
  return {"glm4_moe", kHfTypes, kGgufArchs, from_hf, from_gguf, kTensors, kHfMlpExperts, kGgufExperts, kIgnored};
}

}  // namespace ef
