// gpt-oss: attention sinks, every other layer windowed, biases everywhere, top-k of biased logits, clamped activation.
#include "expertflow/model/arch_common.h"
#include "expertflow/model/gguf_config.h"
#include "expertflow/model/hf_config.h"

namespace ef {

namespace {

constexpr std::array kOwn = {
    TensorSpec{Role::kSinks, "model.layers.{l}.self_attn.sinks", "blk.{l}.attn_sinks.weight|blk.{l}.attn_sinks",
               Dim::kNone, Dim::kHeads},
    TensorSpec{Role::kRouter, "model.layers.{l}.mlp.router.weight", "blk.{l}.ffn_gate_inp.weight", Dim::kExperts,
               Dim::kHidden, false, In::kSparseLayers},
    TensorSpec{Role::kRouterBias, "model.layers.{l}.mlp.router.bias", "blk.{l}.ffn_gate_inp.bias", Dim::kNone,
               Dim::kExperts, false, In::kSparseLayers},
};
constexpr auto kTensors = join(kModelTensors, kAttention, kAttentionBiases, kOwn);

constexpr std::array kHfExperts = {
    ExpertSpec{ExpertFileLayout::kGateUpInterleavedMxfp4, "model.layers.{l}.mlp.experts.gate_up_proj", nullptr,
               "model.layers.{l}.mlp.experts.down_proj", "model.layers.{l}.mlp.experts.gate_up_proj_bias", nullptr,
               "model.layers.{l}.mlp.experts.down_proj_bias"},
    ExpertSpec{ExpertFileLayout::kGateUpInterleavedTransposed, "model.layers.{l}.mlp.experts.gate_up_proj", nullptr,
               "model.layers.{l}.mlp.experts.down_proj", "model.layers.{l}.mlp.experts.gate_up_proj_bias", nullptr,
               "model.layers.{l}.mlp.experts.down_proj_bias"},
};
constexpr std::array kGgufExpertsWithBias = {
    ExpertSpec{ExpertFileLayout::kSeparate, "blk.{l}.ffn_gate_exps.weight", "blk.{l}.ffn_up_exps.weight",
               "blk.{l}.ffn_down_exps.weight", "blk.{l}.ffn_gate_exps.bias", "blk.{l}.ffn_up_exps.bias",
               "blk.{l}.ffn_down_exps.bias"},
    ExpertSpec{ExpertFileLayout::kGateUpRows, "blk.{l}.ffn_gate_up_exps.weight", nullptr,
               "blk.{l}.ffn_down_exps.weight", "blk.{l}.ffn_gate_up_exps.bias", nullptr, "blk.{l}.ffn_down_exps.bias"},
};

void set_family(Config& out) {
  out.sinks = true;
  out.router.score = RouterScore::kSoftmaxAfterTopK;
  out.activation = {ActivationKind::kClampedSwiglu, 1.702f, 7.0f};
}

Config from_hf(const nlohmann::json& json, const nlohmann::json& generation) {
  HfJson config(json, "config.json");
  Config out = hf_common("gpt_oss", config, generation, {.rope_theta = 150000, .norm_eps = 1e-5});
  set_family(out);
  out.activation.limit = float(config.number_or("swiglu_limit", 7.0));
  out.activation.alpha = float(config.number_or("swiglu_alpha", 1.702));
  out.expert_ffn = config.integer("intermediate_size");
  out.qkv_bias = out.o_bias = config.boolean_or("attention_bias", true);
  int window = config.integer_or("sliding_window", 128);
  hf_windows(out, config, window);
  if (!config.has("layer_types"))
    for (size_t l = 1; l < out.layers.size(); l += 2) out.layers[l].window = 0;
  return out;
}

Config from_gguf(const GgufMetadata& metadata, const TensorDirectory& directory) {
  GgufKeys keys(metadata);
  // The published configs say "truncate": false, for which GGUF has no key.
  Config out = gguf_common("gpt_oss", keys, directory, {.yarn_truncate = false});
  set_family(out);
  out.expert_ffn =
      keys.integer(keys.has("expert_feed_forward_length") ? "expert_feed_forward_length" : "feed_forward_length");
  int window = keys.integer("attention.sliding_window");
  for (size_t l = 0; l < out.layers.size(); l += 2) out.layers[l].window = window;
  return out;
}

constexpr std::string_view kHfTypes[] = {"gpt_oss"};
constexpr std::string_view kGgufArchs[] = {"gpt-oss"};

}  // namespace

Architecture gpt_oss() {
  return {"gpt_oss", kHfTypes, kGgufArchs, from_hf, from_gguf, kTensors, kHfExperts, kGgufExpertsWithBias, kIgnored};
}

}  // namespace ef
