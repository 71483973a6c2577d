// What all families share: sizes, attention, rope.
#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/convert/families.h"
#include "expertflow/model/rope.h"

namespace ef {

using nlohmann::ordered_json;
using Type = GgufValue::Type;

void set_text(GgufMetadata& metadata, const std::string& key, std::string value) {
  metadata.values[key] = {Type::kString, Type::kU32, std::move(value)};
}
void set_integer(GgufMetadata& metadata, const std::string& key, int64_t value) {
  metadata.values[key] = {Type::kU32, Type::kU32, value};
}
void set_boolean(GgufMetadata& metadata, const std::string& key, bool value) {
  metadata.values[key] = {Type::kBool, Type::kU32, value};
}

void GgufKeyWriter::integer(std::string_view suffix, int64_t value) {
  set_integer(metadata_, prefix_ + std::string(suffix), value);
}
void GgufKeyWriter::number(std::string_view suffix, double value) {
  metadata_.values[prefix_ + std::string(suffix)] = {Type::kF32, Type::kU32, value};
}
void GgufKeyWriter::boolean(std::string_view suffix, bool value) {
  set_boolean(metadata_, prefix_ + std::string(suffix), value);
}
void GgufKeyWriter::text(std::string_view suffix, std::string value) {
  set_text(metadata_, prefix_ + std::string(suffix), std::move(value));
}

namespace {

double magnitude(const Config& c, int64_t length) {
  return rope_frequencies(c.rope, c.context_length, length).magnitude;
}

void yarn_to_gguf(const RopeConfig& rope, GgufKeyWriter& out) {
  out.text("rope.scaling.type", "yarn");
  out.number("rope.scaling.factor", rope.factor);
  out.integer("rope.scaling.original_context_length", rope.original_max_positions);
  out.number("rope.scaling.yarn_beta_fast", rope.beta_fast);
  out.number("rope.scaling.yarn_beta_slow", rope.beta_slow);
  if (rope.mscale_all_dim != 0) {
    out.number("rope.scaling.yarn_log_multiplier", 0.1 * rope.mscale_all_dim);
  } else if (rope.attention_factor) {
    // The key's factor comes on top of YaRN's own.
    out.number("rope.scaling.attn_factor", *rope.attention_factor / yarn_mscale(rope.factor, 1));
  }
}

void rope_to_gguf(const Config& c, GgufKeyWriter& out) {
  const RopeConfig& rope = c.rope;
  out.number("rope.freq_base", rope.theta);
  out.integer("rope.dimension_count", rope.rotary_dim);
  switch (rope.kind) {
    case RopeKind::kLinear:
      out.text("rope.scaling.type", "linear");
      out.number("rope.scaling.factor", rope.factor);
      break;
    case RopeKind::kYarn:
      yarn_to_gguf(rope, out);
      break;
    case RopeKind::kLongrope:
      out.text("rope.scaling.type", "longrope");
      out.integer("rope.scaling.original_context_length", rope.original_max_positions);
      out.number("rope.scaling.attn_factor", magnitude(c, int64_t{rope.original_max_positions} + 1));
      break;
    default:
      break;
  }
}

std::vector<float> to_floats(const std::vector<double>& values) { return {values.begin(), values.end()}; }

/// What each pair's frequency is divided by.
std::vector<float> divisors(const Config& c) {
  RopeConfig plain;
  plain.theta = c.rope.theta;
  plain.rotary_dim = c.rope.rotary_dim;
  const std::vector<double> base = rope_frequencies(plain, c.context_length, 1).inv_freq;
  const std::vector<double> scaled = rope_frequencies(c.rope, c.context_length, 1).inv_freq;
  std::vector<float> out;
  for (size_t i = 0; i < base.size(); ++i) out.push_back(float(base[i] / scaled[i]));
  return out;
}

ordered_json rope_to_hf(const Config& c) {
  const RopeConfig& rope = c.rope;
  ordered_json out;
  if (!rope.freq_divisors.empty()) {
    // Any divisors at all, the same at every length.
    return {{"rope_type", "longrope"},
            {"factor", 1.0},
            {"original_max_position_embeddings", c.context_length},
            {"attention_factor", 1.0},
            {"short_factor", rope.freq_divisors},
            {"long_factor", rope.freq_divisors}};
  }
  switch (rope.kind) {
    case RopeKind::kLinear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeKind::kYarn:
      out = {{"rope_type", "yarn"},
             {"factor", rope.factor},
             {"original_max_position_embeddings", rope.original_max_positions},
             {"beta_fast", rope.beta_fast},
             {"beta_slow", rope.beta_slow},
             {"truncate", rope.truncate}};
      if (rope.mscale_all_dim != 0) out["mscale"] = rope.mscale, out["mscale_all_dim"] = rope.mscale_all_dim;
      if (rope.attention_factor) out["attention_factor"] = *rope.attention_factor;
      return out;
    case RopeKind::kLongrope:
      out = {{"rope_type", "longrope"},
             {"factor", rope.factor},
             {"original_max_position_embeddings", rope.original_max_positions},
             {"short_factor", rope.short_factor},
             {"long_factor", rope.long_factor},
             {"short_mscale", magnitude(c, 1)},
             {"long_mscale", magnitude(c, int64_t{rope.original_max_positions} + 1)}};
      return out;
    default:
      return nullptr;
  }
}

}  // namespace

std::vector<std::pair<std::string, std::vector<float>>> rope_factor_tensors(const ConversionFamily& family,
                                                                            const Config& config) {
  const RopeConfig& rope = config.rope;
  EF_CHECK(rope.kind != RopeKind::kDynamic, ModelError,
           "rope_type \"dynamic\": GGUF has no such scaling (it has linear, yarn, longrope and fixed factors)");
  if (rope.kind == RopeKind::kLongrope) {
    EF_CHECK(family.rope_tensor == RopeTensor::kLongShort, ModelError,
             "rope_type \"longrope\": llama.cpp has no long and short factors for {}", family.gguf_arch);
    return {{"rope_factors_long.weight", to_floats(rope.long_factor)},
            {"rope_factors_short.weight", to_floats(rope.short_factor)}};
  }
  if (rope.kind != RopeKind::kLlama3 && rope.freq_divisors.empty()) return {};
  EF_CHECK(family.rope_tensor == RopeTensor::kFreqs, ModelError,
           "rope_type \"llama3\": llama.cpp has no rope factors for {}", family.gguf_arch);
  return {{"rope_freqs.weight", divisors(config)}};
}

void write_gguf_config(const ConversionFamily& family, const Config& c, GgufMetadata& metadata) {
  set_text(metadata, "general.architecture", std::string(family.gguf_arch));
  set_text(metadata, "general.type", "model");
  set_integer(metadata, "general.quantization_version", 2);
  GgufKeyWriter out(metadata, family.gguf_arch);
  out.integer("block_count", int64_t(c.layers.size()));
  out.integer("context_length", c.context_length);
  out.integer("embedding_length", c.hidden);
  out.integer("vocab_size", c.vocab);
  out.integer("attention.head_count", c.heads);
  out.integer("attention.head_count_kv", c.kv_heads);
  out.number("attention.layer_norm_rms_epsilon", c.norm_eps);
  out.integer("expert_count", c.router.experts);
  out.integer("expert_used_count", c.router.top_k);
  if (!c.latent) {
    out.integer("attention.key_length", c.head_dim);
    out.integer("attention.value_length", c.head_dim);
  }
  rope_to_gguf(c, out);
  family.to_gguf(c, out);
}

ordered_json write_hf_config(const ConversionFamily& family, const Config& c, Format dtype) {
  ordered_json out;
  out["architectures"] = {std::string(family.hf_class)};
  out["model_type"] = std::string(family.hf_type);
  out["vocab_size"] = c.vocab;
  out["hidden_size"] = c.hidden;
  out["num_hidden_layers"] = c.layers.size();
  out["num_attention_heads"] = c.heads;
  out["num_key_value_heads"] = c.kv_heads;
  if (!c.latent) out["head_dim"] = c.head_dim;
  out["hidden_act"] = "silu";
  out["num_experts_per_tok"] = c.router.top_k;
  out["max_position_embeddings"] = c.context_length;
  out["rms_norm_eps"] = std::stod(fmt::format("{}", c.norm_eps));  // 1e-06, not the float's neighbourhood
  out["rope_theta"] = c.rope.theta;
  out["rope_scaling"] = rope_to_hf(c);
  if (out["rope_scaling"].is_object() && c.rope.kind == RopeKind::kLongrope)
    out["original_max_position_embeddings"] = c.rope.original_max_positions;
  out["tie_word_embeddings"] = c.tied_embeddings;
  out["torch_dtype"] = dtype == Format::kF32 ? "float32" : dtype == Format::kF16 ? "float16" : "bfloat16";
  if (c.bos) out["bos_token_id"] = *c.bos;
  if (c.eos.size() == 1) out["eos_token_id"] = c.eos.front();
  if (c.eos.size() > 1) out["eos_token_id"] = c.eos;
  family.to_hf(c, out);
  return out;
}

}  // namespace ef
