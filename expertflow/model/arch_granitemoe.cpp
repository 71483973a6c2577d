// Granite 3 MoE: fused input_linear (gate rows, then up rows), softmax over the chosen logits, multipliers on
// embedding, attention, residual and logits. The GGUF converter permutes q and k, so that rope pairs are neighbours
// there.
#include "expertflow/base/errors.h"
#include "expertflow/model/arch_common.h"
#include "expertflow/model/gguf_config.h"
#include "expertflow/model/hf_config.h"

namespace ef {

namespace {

constexpr std::array kOwn = {
    TensorSpec{Role::kRouter, "model.layers.{l}.block_sparse_moe.router.layer.weight", "blk.{l}.ffn_gate_inp.weight",
               Dim::kExperts, Dim::kHidden, false, In::kSparseLayers},
};
constexpr auto kTensors = join(kModelTensors, kAttention, kAttentionBiases, kOwn);

constexpr std::array kHfExperts = {
    ExpertSpec{ExpertFileLayout::kGateUpRows, "model.layers.{l}.block_sparse_moe.input_linear.weight", nullptr,
               "model.layers.{l}.block_sparse_moe.output_linear.weight"},
};

Config from_hf(const nlohmann::json& json, const nlohmann::json& generation) {
  HfJson config(json, "config.json");
  Config out = hf_common("granitemoe", config, generation, {});
  out.router.score = RouterScore::kSoftmaxAfterTopK;
  out.expert_ffn = config.integer("intermediate_size");
  out.qkv_bias = out.o_bias = config.boolean_or("attention_bias", false);
  out.attention_scale = float(config.number_or("attention_multiplier", 1.0));
  out.embedding_scale = float(config.number_or("embedding_multiplier", 1.0));
  out.residual_scale = float(config.number_or("residual_multiplier", 1.0));
  double scaling = config.number_or("logits_scaling", 1.0);
  EF_CHECK(scaling > 0, ModelError, "{}: logits_scaling: expected a positive number, found {}", config.where(),
           scaling);
  out.logit_scale = float(1.0 / scaling);
  return out;
}

Config from_gguf(const GgufMetadata& metadata, const TensorDirectory& directory) {
  GgufKeys keys(metadata);
  Config out = gguf_common("granitemoe", keys, directory, {.rope_interleaved = true});
  out.router.score = RouterScore::kSoftmaxAfterTopK;
  out.expert_ffn =
      keys.integer(keys.has("expert_feed_forward_length") ? "expert_feed_forward_length" : "feed_forward_length");
  if (keys.has("attention.scale")) out.attention_scale = float(keys.number("attention.scale"));
  out.embedding_scale = float(keys.number_or("embedding_scale", 1.0));
  out.residual_scale = float(keys.number_or("residual_scale", 1.0));
  double scaling = keys.number_or("logit_scale", 1.0);
  EF_CHECK(scaling > 0, ModelError, "{}: {}: expected a positive number, found {}", keys.file(),
           keys.key("logit_scale"), scaling);
  out.logit_scale = float(1.0 / scaling);
  return out;
}

constexpr std::string_view kHfTypes[] = {"granitemoe"};
constexpr std::string_view kGgufArchs[] = {"granitemoe"};

}  // namespace

Architecture granitemoe() {
  return {"granitemoe", kHfTypes, kGgufArchs, from_hf, from_gguf, kTensors, kHfExperts, kGgufExperts, kIgnored};
}

}  // namespace ef
