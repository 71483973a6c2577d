#include "expertflow/model/config.h"

#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/model/arch.h"

namespace ef {

int Config::sparse_layers() const {
  return int(std::count_if(layers.begin(), layers.end(), [](const LayerConfig& l) { return l.sparse; }));
}

namespace {

// Bounds keep every product of two extents far below 2^63 and every count below what memory can hold.
constexpr int kMaxWidth = 1 << 24, kMaxVocab = 1 << 26, kMaxHeads = 1 << 14, kMaxHeadDim = 1 << 14,
              kMaxExperts = 1 << 16;

void in_range(const std::string& file, const char* key, int64_t value, int64_t low, int64_t high) {
  EF_CHECK(value >= low && value <= high, ModelError, "{}: {}: expected {} to {}, found {}", file, key, low, high,
           value);
}

void positive(const std::string& file, const char* key, double value) {
  EF_CHECK(std::isfinite(value) && value > 0, ModelError, "{}: {}: expected a positive number, found {}", file, key,
           value);
}

void finite(const std::string& file, const char* key, double value) {
  EF_CHECK(std::isfinite(value), ModelError, "{}: {}: expected a finite number, found {}", file, key, value);
}

void check_attention(const Config& c, const std::string& file) {
  in_range(file, "num_attention_heads (head_count)", c.heads, 1, kMaxHeads);
  in_range(file, "num_key_value_heads (head_count_kv)", c.kv_heads, 1, c.heads);
  EF_CHECK(c.heads % c.kv_heads == 0, ModelError,
           "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", file, c.heads, c.kv_heads);
  in_range(file, "head_dim (key_length)", c.head_dim, 1, kMaxHeadDim);
  if (!c.latent) return;
  in_range(file, "q_lora_rank", c.latent->q_lora, 0, kMaxWidth);
  in_range(file, "kv_lora_rank", c.latent->kv_lora, 1, kMaxWidth);
  in_range(file, "qk_nope_head_dim (key_length - rope.dimension_count)", c.latent->nope, 1, kMaxHeadDim);
  in_range(file, "qk_rope_head_dim (rope.dimension_count)", c.latent->rope, 1, kMaxHeadDim);
  in_range(file, "v_head_dim (value_length)", c.latent->v_dim, 1, kMaxHeadDim);
}

void check_factors(const std::string& file, const char* key, const std::vector<double>& factors, int pairs) {
  EF_CHECK(factors.size() == size_t(pairs), ModelError, "{}: {}: expected {} factors (one a rotated pair), found {}",
           file, key, pairs, factors.size());
  for (double f : factors) positive(file, key, f);
}

void check_rope(const Config& c, const std::string& file) {
  const RopeConfig& rope = c.rope;
  if (rope.kind == RopeKind::kNone) return;
  in_range(file, "rotated dimensions of a head", rope.rotary_dim, 2, c.latent ? c.latent->rope : c.head_dim);
  EF_CHECK(rope.rotary_dim % 2 == 0, ModelError, "{}: rotated dimensions of a head: expected an even number, found {}",
           file, rope.rotary_dim);
  positive(file, "rope_theta (rope.freq_base)", rope.theta);
  EF_CHECK(rope.theta > 1, ModelError, "{}: rope_theta (rope.freq_base): expected more than 1, found {}", file,
           rope.theta);
  positive(file, "rope factor (rope.scaling.factor)", rope.factor);
  if (!rope.freq_divisors.empty()) check_factors(file, "rope_freqs.weight", rope.freq_divisors, rope.rotary_dim / 2);
  if (rope.attention_factor) positive(file, "rope attention_factor", *rope.attention_factor);
  if (rope.kind == RopeKind::kYarn || rope.kind == RopeKind::kLlama3 || rope.kind == RopeKind::kLongrope)
    in_range(file, "original_max_position_embeddings (rope.scaling.original_context_length)",
             rope.original_max_positions, 2, 1 << 30);
  if (rope.kind == RopeKind::kYarn) {
    positive(file, "rope beta_fast", rope.beta_fast);
    positive(file, "rope beta_slow", rope.beta_slow);
    finite(file, "rope mscale", rope.mscale);
    finite(file, "rope mscale_all_dim", rope.mscale_all_dim);
  }
  if (rope.kind == RopeKind::kLlama3) {
    positive(file, "rope low_freq_factor", rope.low_freq_factor);
    positive(file, "rope high_freq_factor", rope.high_freq_factor);
    EF_CHECK(rope.high_freq_factor > rope.low_freq_factor, ModelError,
             "{}: rope high_freq_factor: expected more than low_freq_factor {}, found {}", file, rope.low_freq_factor,
             rope.high_freq_factor);
  }
  if (rope.kind == RopeKind::kDynamic)
    in_range(file, "rotated dimensions of a head (dynamic rope)", rope.rotary_dim, 4, kMaxHeadDim);
  if (rope.kind == RopeKind::kLongrope) {
    check_factors(file, "longrope short_factor", rope.short_factor, rope.rotary_dim / 2);
    check_factors(file, "longrope long_factor", rope.long_factor, rope.rotary_dim / 2);
    if (rope.short_mscale) positive(file, "longrope short_mscale", *rope.short_mscale);
    if (rope.long_mscale) positive(file, "longrope long_mscale", *rope.long_mscale);
  }
}

void check_router(const Config& c, const std::string& file) {
  const RouterConfig& r = c.router;
  in_range(file, "number of experts (num_experts, expert_count)", r.experts, 1, kMaxExperts);
  in_range(file, "experts a token (num_experts_per_tok, expert_used_count)", r.top_k, 1, r.experts);
  in_range(file, "n_group (expert_group_count)", r.groups, 1, r.experts);
  in_range(file, "topk_group (expert_group_used_count)", r.top_groups, 1, r.groups);
  EF_CHECK(r.experts % r.groups == 0, ModelError, "{}: number of experts {} is not a multiple of n_group {}", file,
           r.experts, r.groups);
  if (r.groups > 1) {
    int64_t size = r.experts / r.groups;
    EF_CHECK(r.top_k <= size * r.top_groups, ModelError,
             "{}: experts a token: expected at most {} (topk_group groups of {}), found {}", file, size * r.top_groups,
             size, r.top_k);
    EF_CHECK(r.group_score != GroupScore::kSumOfTop2 || size >= 2, ModelError,
             "{}: n_group: expected groups of 2 experts or more, found {} groups of {}", file, r.groups, size);
  }
  EF_CHECK(r.score != RouterScore::kSparsemixer || r.top_k == 2, ModelError,
           "{}: num_experts_per_tok: sparsemixer routing expects 2, found {}", file, r.top_k);
  positive(file, "routed_scaling_factor (expert_weights_scale)", r.scale);
  EF_CHECK(std::isfinite(r.jitter_eps) && r.jitter_eps >= 0, ModelError,
           "{}: router_jitter_noise: expected 0 or more, found {}", file, r.jitter_eps);
}

}  // namespace

void validate(const Config& c, const std::string& file) {
  in_range(file, "vocab_size", c.vocab, 1, kMaxVocab);
  in_range(file, "hidden_size (embedding_length)", c.hidden, 1, kMaxWidth);
  in_range(file, "num_hidden_layers (block_count)", int64_t(c.layers.size()), 1, kMaxLayers);
  in_range(file, "num_nextn_predict_layers", c.skipped_layers, 0, kMaxLayers);
  in_range(file, "max_position_embeddings (context_length)", c.context_length, 1, 1 << 30);
  positive(file, "norm epsilon", c.norm_eps);
  check_attention(c, file);
  check_rope(c, file);
  check_router(c, file);
  int sparse = c.sparse_layers();
  EF_CHECK(sparse > 0, ModelError,
           "{}: no layer has experts (mlp_only_layers, decoder_sparse_step, first_k_dense_replace): expected a "
           "Mixture-of-Experts model",
           file);
  in_range(file, "width of an expert (moe_intermediate_size, expert_feed_forward_length)", c.expert_ffn, 1, kMaxWidth);
  if (sparse < int(c.layers.size()))
    in_range(file, "width of dense layers (intermediate_size, feed_forward_length)", c.dense_ffn, 1, kMaxWidth);
  in_range(file, "width of shared experts", c.shared_ffn, 0, kMaxWidth);
  for (const LayerConfig& layer : c.layers) in_range(file, "sliding_window", layer.window, 0, 1 << 30);
  positive(file, "attention scale", c.attention_scale);
  EF_CHECK(std::isfinite(c.clip_qkv) && c.clip_qkv >= 0, ModelError, "{}: clip_qkv: expected 0 or more, found {}", file,
           c.clip_qkv);
  positive(file, "embedding multiplier", c.embedding_scale);
  positive(file, "residual multiplier", c.residual_scale);
  positive(file, "logit scale", c.logit_scale);
  positive(file, "activation alpha", c.activation.alpha);
  positive(file, "swiglu_limit", c.activation.limit);
  for (TokenId id : c.eos) in_range(file, "eos_token_id", id, 0, std::numeric_limits<TokenId>::max());
}

}  // namespace ef
