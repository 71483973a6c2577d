// Keys as llama.cpp's converter writes them, and config.json as the families' configuration classes read it.
#include "expertflow/convert/families.h"

#include <algorithm>
#include <array>

namespace ef {
namespace {

using nlohmann::ordered_json;

int common_window(const Config& c) {
  int window = 0;
  for (const LayerConfig& layer : c.layers) window = std::max(window, layer.window);
  return window;
}

int leading_dense(const Config& c) {
  int n = 0;
  while (n < int(c.layers.size()) && !c.layers[size_t(n)].sparse) ++n;
  return n;
}

int shared_count(const Config& c) { return c.expert_ffn > 0 ? c.shared_ffn / c.expert_ffn : 0; }

void window_to_gguf(const Config& c, GgufKeyWriter& out) {
  if (const int window = common_window(c); window > 0) out.integer("attention.sliding_window", window);
}

void window_to_hf(const Config& c, ordered_json& out) {
  const int window = common_window(c);
  out["sliding_window"] = window > 0 ? ordered_json(window) : ordered_json();
}

/// Written where it is not what llama.cpp assumes of the family; readers that know the key see the difference.
void norm_to_gguf(const Config& c, bool family, GgufKeyWriter& out) {
  if (c.router.renormalise != family) out.boolean("expert_weights_norm", c.router.renormalise);
}

// ---- Mixtral ----

void mixtral_to_gguf(const Config& c, GgufKeyWriter& out) {
  out.integer("feed_forward_length", c.expert_ffn);
  window_to_gguf(c, out);
}
void mixtral_to_hf(const Config& c, ordered_json& out) {
  out["intermediate_size"] = c.expert_ffn;
  out["num_local_experts"] = c.router.experts;
  window_to_hf(c, out);
}

// ---- Qwen ----

void qwen2_to_gguf(const Config& c, GgufKeyWriter& out) {
  out.integer("feed_forward_length", c.dense_ffn);
  out.integer("expert_feed_forward_length", c.expert_ffn);
  out.integer("expert_shared_feed_forward_length", c.shared_ffn);
  norm_to_gguf(c, false, out);
}
void qwen2_to_hf(const Config& c, ordered_json& out) {
  out["intermediate_size"] = c.dense_ffn;
  out["moe_intermediate_size"] = c.expert_ffn;
  out["shared_expert_intermediate_size"] = c.shared_ffn;
  out["num_experts"] = c.router.experts;
  out["norm_topk_prob"] = c.router.renormalise;
  out["qkv_bias"] = c.qkv_bias;
  out["decoder_sparse_step"] = 1;
  out["mlp_only_layers"] = ordered_json::array();
  out["use_sliding_window"] = false;
}
void qwen3_to_gguf(const Config& c, GgufKeyWriter& out) {
  out.integer("feed_forward_length", c.dense_ffn);
  out.integer("expert_feed_forward_length", c.expert_ffn);
  norm_to_gguf(c, true, out);
}
void qwen3_to_hf(const Config& c, ordered_json& out) {
  out["intermediate_size"] = c.dense_ffn;
  out["moe_intermediate_size"] = c.expert_ffn;
  out["num_experts"] = c.router.experts;
  out["norm_topk_prob"] = c.router.renormalise;
  out["attention_bias"] = c.qkv_bias;
  out["decoder_sparse_step"] = 1;
  out["mlp_only_layers"] = ordered_json::array();
  out["use_sliding_window"] = false;
}

// ---- OLMoE ----

void olmoe_to_gguf(const Config& c, GgufKeyWriter& out) {
  out.integer("feed_forward_length", c.expert_ffn);
  if (c.clip_qkv > 0) out.number("attention.clamp_kqv", c.clip_qkv);
  norm_to_gguf(c, false, out);
}
void olmoe_to_hf(const Config& c, ordered_json& out) {
  out["intermediate_size"] = c.expert_ffn;
  out["num_experts"] = c.router.experts;
  out["norm_topk_prob"] = c.router.renormalise;
  out["clip_qkv"] = c.clip_qkv > 0 ? ordered_json(c.clip_qkv) : ordered_json();
  out["attention_bias"] = c.qkv_bias;
}

// ---- DeepSeek, GLM ----

void routing_to_gguf(const Config& c, GgufKeyWriter& out) {
  out.integer("feed_forward_length", c.dense_ffn);
  out.integer("expert_feed_forward_length", c.expert_ffn);
  out.integer("expert_shared_count", shared_count(c));
  out.integer("leading_dense_block_count", leading_dense(c));
  out.integer("expert_gating_func", c.router.score == RouterScore::kSigmoid ? 2 : 1);
  out.integer("expert_group_count", c.router.groups);
  out.integer("expert_group_used_count", c.router.top_groups);
  out.number("expert_weights_scale", c.router.scale);
  out.boolean("expert_weights_norm", c.router.renormalise);
}
void routing_to_hf(const Config& c, ordered_json& out) {
  out["intermediate_size"] = c.dense_ffn;
  out["moe_intermediate_size"] = c.expert_ffn;
  out["n_routed_experts"] = c.router.experts;
  out["n_shared_experts"] = shared_count(c);
  out["first_k_dense_replace"] = leading_dense(c);
  out["moe_layer_freq"] = 1;
  out["scoring_func"] = c.router.score == RouterScore::kSigmoid ? "sigmoid" : "softmax";
  out["topk_method"] = c.selection_bias ? "noaux_tc" : c.router.groups > 1 ? "group_limited_greedy" : "greedy";
  out["n_group"] = c.router.groups;
  out["topk_group"] = c.router.top_groups;
  out["norm_topk_prob"] = c.router.renormalise;
  out["routed_scaling_factor"] = c.router.scale;
  out["num_nextn_predict_layers"] = 0;
}
void deepseek_to_gguf(const Config& c, GgufKeyWriter& out) {
  routing_to_gguf(c, out);
  const LatentConfig& latent = *c.latent;
  if (latent.q_lora > 0) out.integer("attention.q_lora_rank", latent.q_lora);
  out.integer("attention.kv_lora_rank", latent.kv_lora);
  out.integer("attention.key_length", latent.kv_lora + latent.rope);
  out.integer("attention.value_length", latent.kv_lora);
  out.integer("attention.key_length_mla", latent.nope + latent.rope);
  out.integer("attention.value_length_mla", latent.v_dim);
}
void deepseek_to_hf(const Config& c, ordered_json& out) {
  routing_to_hf(c, out);
  const LatentConfig& latent = *c.latent;
  out["num_key_value_heads"] = c.heads;
  out["q_lora_rank"] = latent.q_lora > 0 ? ordered_json(latent.q_lora) : ordered_json();
  out["kv_lora_rank"] = latent.kv_lora;
  out["qk_nope_head_dim"] = latent.nope;
  out["qk_rope_head_dim"] = latent.rope;
  out["v_head_dim"] = latent.v_dim;
  out["attention_bias"] = false;
}
void glm4_to_gguf(const Config& c, GgufKeyWriter& out) {
  routing_to_gguf(c, out);
  out.integer("nextn_predict_layers", 0);
}
void glm4_to_hf(const Config& c, ordered_json& out) {
  routing_to_hf(c, out);
  out["partial_rotary_factor"] = double(c.rope.rotary_dim) / c.head_dim;
  out["use_qk_norm"] = c.qk_norm == QkNorm::kPerHead;
  out["attention_bias"] = c.qkv_bias;
}

// ---- gpt-oss, Phi, Granite ----

void gpt_oss_to_gguf(const Config& c, GgufKeyWriter& out) {
  out.integer("feed_forward_length", c.expert_ffn);
  out.integer("expert_feed_forward_length", c.expert_ffn);
  out.integer("attention.sliding_window", common_window(c));
}
void gpt_oss_to_hf(const Config& c, ordered_json& out) {
  out["intermediate_size"] = c.expert_ffn;
  out["num_local_experts"] = c.router.experts;
  out["experts_per_token"] = c.router.top_k;
  out["attention_bias"] = c.qkv_bias;
  out["swiglu_limit"] = c.activation.limit;
  window_to_hf(c, out);
  for (const LayerConfig& layer : c.layers)
    out["layer_types"].push_back(layer.window > 0 ? "sliding_attention" : "full_attention");
}
void phimoe_to_gguf(const Config& c, GgufKeyWriter& out) {
  out.integer("feed_forward_length", c.expert_ffn);
  window_to_gguf(c, out);
}
void phimoe_to_hf(const Config& c, ordered_json& out) {
  out["intermediate_size"] = c.expert_ffn;
  out["num_local_experts"] = c.router.experts;
  out["attention_bias"] = c.qkv_bias;
  out["lm_head_bias"] = c.head_bias;
  out["router_jitter_noise"] = c.router.jitter_eps;
  window_to_hf(c, out);
}
void granitemoe_to_gguf(const Config& c, GgufKeyWriter& out) {
  out.integer("feed_forward_length", c.expert_ffn);
  out.number("attention.scale", c.attention_scale);
  out.number("embedding_scale", c.embedding_scale);
  out.number("residual_scale", c.residual_scale);
  out.number("logit_scale", 1.0 / c.logit_scale);
}
void granitemoe_to_hf(const Config& c, ordered_json& out) {
  out.erase("head_dim");  // always hidden_size / num_attention_heads here
  out["intermediate_size"] = c.expert_ffn;
  out["num_local_experts"] = c.router.experts;
  out["attention_bias"] = c.qkv_bias;
  out["attention_multiplier"] = c.attention_scale;
  out["embedding_multiplier"] = c.embedding_scale;
  out["residual_multiplier"] = c.residual_scale;
  out["logits_scaling"] = 1.0 / c.logit_scale;
}

constexpr const char* kPostAttention = "blk.{l}.post_attention_norm.weight";

/// One row a family.
constexpr std::array kFamilies = {
    ConversionFamily{.arch = "mixtral",
                     .gguf_arch = "llama",
                     .hf_type = "mixtral",
                     .hf_class = "MixtralForCausalLM",
                     .permuted_qk = true,
                     .rope_tensor = RopeTensor::kFreqs,
                     .to_gguf = mixtral_to_gguf,
                     .to_hf = mixtral_to_hf},
    ConversionFamily{.arch = "qwen2_moe",
                     .gguf_arch = "qwen2moe",
                     .hf_type = "qwen2_moe",
                     .hf_class = "Qwen2MoeForCausalLM",
                     .to_gguf = qwen2_to_gguf,
                     .to_hf = qwen2_to_hf},
    ConversionFamily{.arch = "qwen3_moe",
                     .gguf_arch = "qwen3moe",
                     .hf_type = "qwen3_moe",
                     .hf_class = "Qwen3MoeForCausalLM",
                     .to_gguf = qwen3_to_gguf,
                     .to_hf = qwen3_to_hf},
    ConversionFamily{.arch = "olmoe",
                     .gguf_arch = "olmoe",
                     .hf_type = "olmoe",
                     .hf_class = "OlmoeForCausalLM",
                     .to_gguf = olmoe_to_gguf,
                     .to_hf = olmoe_to_hf},
    ConversionFamily{.arch = "deepseek_v2",
                     .gguf_arch = "deepseek2",
                     .hf_type = "deepseek_v2",
                     .hf_class = "DeepseekV2ForCausalLM",
                     .split_kv_b = true,
                     .to_gguf = deepseek_to_gguf,
                     .to_hf = deepseek_to_hf},
    ConversionFamily{.arch = "deepseek_v3",
                     .gguf_arch = "deepseek2",
                     .hf_type = "deepseek_v3",
                     .hf_class = "DeepseekV3ForCausalLM",
                     .split_kv_b = true,
                     .to_gguf = deepseek_to_gguf,
                     .to_hf = deepseek_to_hf},
    ConversionFamily{.arch = "gpt_oss",
                     .gguf_arch = "gpt-oss",
                     .hf_type = "gpt_oss",
                     .hf_class = "GptOssForCausalLM",
                     .gguf_ffn_norm = kPostAttention,
                     .to_gguf = gpt_oss_to_gguf,
                     .to_hf = gpt_oss_to_hf},
    ConversionFamily{.arch = "phimoe",
                     .gguf_arch = "phimoe",
                     .hf_type = "phimoe",
                     .hf_class = "PhimoeForCausalLM",
                     .rope_tensor = RopeTensor::kLongShort,
                     .to_gguf = phimoe_to_gguf,
                     .to_hf = phimoe_to_hf},
    ConversionFamily{.arch = "granitemoe",
                     .gguf_arch = "granitemoe",
                     .hf_type = "granitemoe",
                     .hf_class = "GraniteMoeForCausalLM",
                     .permuted_qk = true,
                     .rope_tensor = RopeTensor::kFreqs,
                     .to_gguf = granitemoe_to_gguf,
                     .to_hf = granitemoe_to_hf},
    ConversionFamily{.arch = "glm4_moe",
                     .gguf_arch = "glm4moe",
                     .hf_type = "glm4_moe",
                     .hf_class = "Glm4MoeForCausalLM",
                     .gguf_ffn_norm = kPostAttention,
                     .to_gguf = glm4_to_gguf,
                     .to_hf = glm4_to_hf},
};

}  // namespace

const ConversionFamily* find_family(std::string_view arch) {
  const auto it = std::find_if(kFamilies.begin(), kFamilies.end(),
                               [&](const ConversionFamily& family) { return family.arch == arch; });
  return it == kFamilies.end() ? nullptr : &*it;
}

}  // namespace ef
