#include "expertflow/model/latent_common.h"

#include <fmt/format.h>

#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/model/rope.h"

namespace ef {

namespace {

// The softmax scale carries mscale(mscale_all_dim)^2 (DeepSeek's published code; YaRN arXiv:2309.00071 equation 22 on q
// and k).
void set_scale(Config& out) {
  double scale = 1.0 / std::sqrt(double(out.head_dim));
  const RopeConfig& rope = out.rope;
  if (rope.kind != RopeKind::kDefault && rope.mscale_all_dim != 0) {
    double m = yarn_mscale(rope.factor, rope.mscale_all_dim);
    scale *= m * m;
  }
  out.attention_scale = float(scale);
}

}  // namespace

Config latent_from_hf(std::string_view arch, const HfJson& config, const nlohmann::json& generation_config,
                      bool interleaved, int default_leading_dense) {
  LatentConfig latent;
  latent.q_lora = config.integer_or("q_lora_rank", 0);
  latent.kv_lora = config.integer("kv_lora_rank");
  latent.nope = config.integer("qk_nope_head_dim");
  latent.rope = config.integer("qk_rope_head_dim");
  latent.v_dim = config.integer("v_head_dim");
  EF_CHECK(!config.boolean_or("attention_bias", false), ModelError, "{}: attention_bias: expected false, found true",
           config.where());
  Config out = hf_common(arch, config, generation_config, {.rope_interleaved = interleaved}, latent.rope);
  out.latent = latent;
  out.head_dim = int(std::min<int64_t>(int64_t(latent.nope) + latent.rope, 1 << 30));
  out.kv_heads = 1;
  set_scale(out);
  out.expert_ffn = config.integer("moe_intermediate_size");
  out.dense_ffn = config.integer_or("intermediate_size", 0);
  int64_t shared = int64_t(config.integer_or("n_shared_experts", 0)) * out.expert_ffn;
  EF_CHECK(shared >= 0 && shared < (1 << 30), ModelError, "{}: n_shared_experts: {} shared experts of {} are too many",
           config.where(), config.integer_or("n_shared_experts", 0), out.expert_ffn);
  out.shared_ffn = int(shared);
  hf_leading_dense(out, config, default_leading_dense);
  return out;
}

namespace {

// Files made before converters wrote the group keys: what the published checkpoints of these sizes have.
void read_groups(Config& out, const GgufKeys& keys, bool v3) {
  out.router.groups = keys.integer_or("expert_group_count", 1);
  out.router.top_groups = keys.integer_or("expert_group_used_count", out.router.groups);
  if (keys.has("expert_group_count")) return;
  if (v3 && out.router.experts == 256) out.router.groups = 8, out.router.top_groups = 4;   // DeepSeek-V3, R1
  if (!v3 && out.router.experts == 160) out.router.groups = 8, out.router.top_groups = 3;  // DeepSeek-V2
  if (out.router.groups > 1)
    out.notes.push_back(
        fmt::format("{} is absent: routing limited to {} of {} groups, as DeepSeek models with {} experts have it",
                    keys.key("expert_group_count"), out.router.top_groups, out.router.groups, out.router.experts));
}

}  // namespace

Config latent_from_gguf(std::string_view arch, const GgufKeys& keys, const TensorDirectory& directory) {
  LatentConfig latent;
  latent.q_lora = keys.integer_or("attention.q_lora_rank", 0);
  latent.kv_lora = keys.integer("attention.kv_lora_rank");
  latent.rope = keys.integer("rope.dimension_count");
  // Newer files describe the compressed cache in key_length and keep a head's sizes in the _mla keys.
  const char* key_length = keys.has("attention.key_length_mla") ? "attention.key_length_mla" : "attention.key_length";
  const char* value_length =
      keys.has("attention.value_length_mla") ? "attention.value_length_mla" : "attention.value_length";
  int head_dim = keys.integer(key_length);
  EF_CHECK(latent.rope > 0 && head_dim > latent.rope, ModelError,
           "{}: {}: expected more than {} (rope.dimension_count), found {}", keys.file(), keys.key(key_length),
           latent.rope, head_dim);
  latent.nope = head_dim - latent.rope;
  latent.v_dim = keys.integer(value_length);
  Config out = gguf_common(arch, keys, directory, {.rope_interleaved = true}, latent.rope);
  out.latent = latent;
  out.head_dim = head_dim;
  out.kv_heads = 1;
  set_scale(out);
  out.expert_ffn = keys.integer("expert_feed_forward_length");
  out.dense_ffn = keys.integer_or("feed_forward_length", 0);
  int64_t shared = int64_t(keys.integer_or("expert_shared_count", 0)) * out.expert_ffn;
  EF_CHECK(shared >= 0 && shared < (1 << 30), ModelError, "{}: {}: {} shared experts of {} are too many", keys.file(),
           keys.key("expert_shared_count"), keys.integer_or("expert_shared_count", 0), out.expert_ffn);
  out.shared_ffn = int(shared);
  gguf_leading_dense(out, keys);
  read_groups(out, keys, arch == "deepseek_v3");
  out.router.renormalise_eps = 1e-20f;
  return out;
}

bool is_deepseek_v3_gguf(const GgufMetadata& metadata, const TensorDirectory& directory) {
  if (metadata.contains("deepseek2.expert_gating_func")) return metadata.integer("deepseek2.expert_gating_func") == 2;
  for (const TensorInfo& tensor : directory.tensors())
    if (tensor.name.find(".exp_probs_b") != std::string::npos) return true;
  return false;
}

}  // namespace ef
