// Phi-3.5-MoE: LayerNorm with bias, biases everywhere, sparsemixer routing, longrope with its own magnitudes.
#include <fmt/format.h>

#include <cmath>

#include "expertflow/model/arch_common.h"
#include "expertflow/model/gguf_config.h"
#include "expertflow/model/hf_config.h"

namespace ef {

namespace {

constexpr bool fused(const Config& c) { return c.fused_qkv; }
constexpr bool separate(const Config& c) { return !c.fused_qkv; }
constexpr bool fused_bias(const Config& c) { return c.fused_qkv && c.qkv_bias; }
constexpr bool separate_bias(const Config& c) { return !c.fused_qkv && c.qkv_bias; }

constexpr std::array kOwn = {
    TensorSpec{Role::kFinalNormBias, "model.norm.bias", "output_norm.bias", Dim::kNone, Dim::kHidden, false,
               In::kModel},
    TensorSpec{Role::kHeadBias, "lm_head.bias", "output.bias", Dim::kNone, Dim::kVocab, false, In::kModel,
               [](const Config& c) { return c.head_bias; }},
    TensorSpec{Role::kRopeFreqs, nullptr, "rope_factors_long.weight", Dim::kNone, Dim::kRopePairs, true, In::kModel},
    TensorSpec{Role::kRopeFreqs, nullptr, "rope_factors_short.weight", Dim::kNone, Dim::kRopePairs, true, In::kModel},
    TensorSpec{Role::kAttnNormBias, "model.layers.{l}.input_layernorm.bias", "blk.{l}.attn_norm.bias", Dim::kNone,
               Dim::kHidden},
    TensorSpec{Role::kFfnNormBias, "model.layers.{l}.post_attention_layernorm.bias", "blk.{l}.ffn_norm.bias",
               Dim::kNone, Dim::kHidden},
    TensorSpec{Role::kQkv, nullptr, "blk.{l}.attn_qkv.weight", Dim::kQkv, Dim::kHidden, false, In::kEveryLayer, fused},
    TensorSpec{Role::kQkvBias, nullptr, "blk.{l}.attn_qkv.bias", Dim::kNone, Dim::kQkv, false, In::kEveryLayer,
               fused_bias},
    TensorSpec{Role::kQ, "model.layers.{l}.self_attn.q_proj.weight", "blk.{l}.attn_q.weight", Dim::kQ, Dim::kHidden,
               false, In::kEveryLayer, separate},
    TensorSpec{Role::kK, "model.layers.{l}.self_attn.k_proj.weight", "blk.{l}.attn_k.weight", Dim::kKv, Dim::kHidden,
               false, In::kEveryLayer, separate},
    TensorSpec{Role::kV, "model.layers.{l}.self_attn.v_proj.weight", "blk.{l}.attn_v.weight", Dim::kKv, Dim::kHidden,
               false, In::kEveryLayer, separate},
    TensorSpec{Role::kO, "model.layers.{l}.self_attn.o_proj.weight", "blk.{l}.attn_output.weight", Dim::kHidden,
               Dim::kAttnOut},
    TensorSpec{Role::kQBias, "model.layers.{l}.self_attn.q_proj.bias", "blk.{l}.attn_q.bias", Dim::kNone, Dim::kQ,
               false, In::kEveryLayer, separate_bias},
    TensorSpec{Role::kKBias, "model.layers.{l}.self_attn.k_proj.bias", "blk.{l}.attn_k.bias", Dim::kNone, Dim::kKv,
               false, In::kEveryLayer, separate_bias},
    TensorSpec{Role::kVBias, "model.layers.{l}.self_attn.v_proj.bias", "blk.{l}.attn_v.bias", Dim::kNone, Dim::kKv,
               false, In::kEveryLayer, separate_bias},
    TensorSpec{Role::kOBias, "model.layers.{l}.self_attn.o_proj.bias", "blk.{l}.attn_output.bias", Dim::kNone,
               Dim::kHidden, false, In::kEveryLayer, has_o_bias},
    TensorSpec{Role::kRouter, "model.layers.{l}.block_sparse_moe.gate.weight|model.layers.{l}.mlp.gate.weight",
               "blk.{l}.ffn_gate_inp.weight", Dim::kExperts, Dim::kHidden, false, In::kSparseLayers},
};
constexpr auto kTensors = join(kModelTensors, kOwn);

void set_family(Config& out) {
  out.norm = NormKind::kLayer;
  out.router.score = RouterScore::kSparsemixer;
}

Config from_hf(const nlohmann::json& json, const nlohmann::json& generation) {
  HfJson config(json, "config.json");
  Config out = hf_common("phimoe", config, generation, {.rope_theta = 1e6, .norm_eps = 1e-5});
  set_family(out);
  out.router.jitter_eps = float(config.number_or("router_jitter_noise", 0.01));
  out.expert_ffn = config.integer("intermediate_size");
  out.qkv_bias = out.o_bias = config.boolean_or("attention_bias", false);
  out.head_bias = config.boolean_or("lm_head_bias", false);
  hf_windows(out, config, config.integer_or("sliding_window", 0));
  // The authors' code, and transformers before 5 (which write rope_scaling), switch factors and magnitude with the
  // length. transformers 5 (rope_parameters) switches the magnitude alone: a file is read as the library that wrote it
  // runs it.
  out.rope.long_frequencies = !config.has("rope_parameters");
  return out;
}

// Converters write longrope's general magnitude, sqrt(1 + ln(factor) / ln(original)), and drop the checkpoint's own
// short_mscale and long_mscale. The published model of these lengths has one value for both.
void set_magnitudes(Config& out) {
  constexpr double kPublished = 1.243163121016122;
  RopeConfig& rope = out.rope;
  const bool published =
      rope.kind == RopeKind::kLongrope && rope.original_max_positions == 4096 && out.context_length == 131072;
  if (!published) return;
  const double general = std::sqrt(1 + std::log(rope.factor) / std::log(double(rope.original_max_positions)));
  if (rope.attention_factor && std::fabs(*rope.attention_factor - general) > 1e-3) return;
  rope.short_mscale = rope.long_mscale = kPublished;
  out.notes.push_back(
      fmt::format("the file has no short_mscale and long_mscale: {} is used, as Phi-3.5-MoE has it", kPublished));
}

Config from_gguf(const GgufMetadata& metadata, const TensorDirectory& directory) {
  GgufKeys keys(metadata);
  const char* eps =
      keys.has("attention.layer_norm_epsilon") ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  Config out = gguf_common("phimoe", keys, directory, {.norm_eps_key = eps});
  set_family(out);
  out.expert_ffn =
      keys.integer(keys.has("expert_feed_forward_length") ? "expert_feed_forward_length" : "feed_forward_length");
  int window = keys.integer_or("attention.sliding_window", 0);
  for (LayerConfig& layer : out.layers) layer.window = window;
  set_magnitudes(out);
  return out;
}

constexpr std::string_view kHfTypes[] = {"phimoe"};
constexpr std::string_view kGgufArchs[] = {"phimoe"};

}  // namespace

Architecture phimoe() {
  return {"phimoe", kHfTypes, kGgufArchs, from_hf, from_gguf, kTensors, kHfBlockSparseExperts, kGgufExperts, kIgnored};
}

}  // namespace ef
