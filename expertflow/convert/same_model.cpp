// Whether a config read back from what would be written is the source's: what a file kind has no key for shows here.
#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/convert/plan.h"
#include "expertflow/model/rope.h"

namespace ef {
namespace {

bool close(double a, double b) { return std::fabs(a - b) <= 2e-6 * std::max(std::fabs(a), std::fabs(b)); }

class Comparison {
 public:
  explicit Comparison(std::string_view target) : target_(target) {}

  template <class T>
  void same(const char* what, const T& source, const T& result) const {
    bool equal;
    if constexpr (std::is_floating_point_v<T>) {
      equal = close(double(source), double(result));
    } else {
      equal = source == result;
    }
    if constexpr (std::is_enum_v<T>) {
      EF_CHECK(equal, ModelError, "{} cannot carry this model's {} (kind {}; it would be read as {})", target_, what,
               int(source), int(result));
    } else {
      EF_CHECK(equal, ModelError, "{} cannot carry this model's {}: {} would be read as {}", target_, what, source,
               result);
    }
  }

  void same_layers(const Config& a, const Config& b) const {
    same("number of layers", a.layers.size(), b.layers.size());
    for (size_t l = 0; l < a.layers.size(); ++l) {
      EF_CHECK(a.layers[l].sparse == b.layers[l].sparse, ModelError,
               "{} cannot carry this model's layers: layer {} is {}, and would be read as the other kind", target_, l,
               a.layers[l].sparse ? "sparse" : "dense");
      EF_CHECK(a.layers[l].window == b.layers[l].window, ModelError,
               "{} cannot carry this model's attention windows: {} in layer {} would be read as {}", target_,
               a.layers[l].window, l, b.layers[l].window);
    }
  }

  void same_rope(const Config& a, const Config& b) const {
    same("rope.rotary_dim", a.rope.rotary_dim, b.rope.rotary_dim);
    // Kinds may differ where they compute the same.
    for (const int64_t length : {int64_t{1}, int64_t{a.rope.original_max_positions},
                                 int64_t{a.rope.original_max_positions} + 1, 2 * int64_t{a.context_length}}) {
      const RopeFrequencies x = rope_frequencies(a.rope, a.context_length, length);
      const RopeFrequencies y = rope_frequencies(b.rope, b.context_length, length);
      EF_CHECK(close(x.magnitude, y.magnitude), ModelError,
               "{} cannot carry this model's rope: at {} tokens its magnitude {} would be read as {}", target_, length,
               x.magnitude, y.magnitude);
      for (size_t i = 0; i < x.inv_freq.size(); ++i)
        EF_CHECK(close(x.inv_freq[i], y.inv_freq[i]), ModelError,
                 "{} cannot carry this model's rope: at {} tokens the frequency {} of pair {} would be read as {}",
                 target_, length, x.inv_freq[i], i, y.inv_freq[i]);
    }
  }

  void same_router(const RouterConfig& a, const RouterConfig& b) const {
    same("router scores", a.score, b.score);
    same("number of experts", a.experts, b.experts);
    same("experts per token", a.top_k, b.top_k);
    same("expert groups", a.groups, b.groups);
    same("expert groups per token", a.top_groups, b.top_groups);
    if (a.groups > 1) same("scores of expert groups", a.group_score, b.group_score);
    same("renormalisation of expert weights", a.renormalise, b.renormalise);
    same("scale of expert weights", a.scale, b.scale);
    if (a.score == RouterScore::kSparsemixer) same("router jitter", a.jitter_eps, b.jitter_eps);
  }

 private:
  std::string_view target_;
};

}  // namespace

void require_same_model(const Config& a, const Config& b, std::string_view target) {
  const Comparison compare(target);
  compare.same("architecture", a.arch, b.arch);
  compare.same("vocabulary size", a.vocab, b.vocab);
  compare.same("hidden size", a.hidden, b.hidden);
  compare.same("attention heads", a.heads, b.heads);
  compare.same("key/value heads", a.kv_heads, b.kv_heads);
  compare.same("head size", a.head_dim, b.head_dim);
  compare.same("latent attention", a.latent.has_value(), b.latent.has_value());
  if (a.latent) {
    compare.same("q_lora_rank", a.latent->q_lora, b.latent->q_lora);
    compare.same("kv_lora_rank", a.latent->kv_lora, b.latent->kv_lora);
    compare.same("qk_nope_head_dim", a.latent->nope, b.latent->nope);
    compare.same("qk_rope_head_dim", a.latent->rope, b.latent->rope);
    compare.same("v_head_dim", a.latent->v_dim, b.latent->v_dim);
  }
  compare.same_layers(a, b);
  compare.same("norm", a.norm, b.norm);
  compare.same("norm epsilon", a.norm_eps, b.norm_eps);
  compare.same("q/k norm", a.qk_norm, b.qk_norm);
  compare.same("attention sinks", a.sinks, b.sinks);
  compare.same("context length", a.context_length, b.context_length);
  compare.same_rope(a, b);
  compare.same("attention scale", a.attention_scale, b.attention_scale);
  compare.same("clipping of q, k and v", a.clip_qkv, b.clip_qkv);
  compare.same("embedding scale", a.embedding_scale, b.embedding_scale);
  compare.same("residual scale", a.residual_scale, b.residual_scale);
  compare.same("logit scale", a.logit_scale, b.logit_scale);
  compare.same("tied embeddings", a.tied_embeddings, b.tied_embeddings);
  compare.same_router(a.router, b.router);
  compare.same("activation", a.activation.kind, b.activation.kind);
  compare.same("activation alpha", a.activation.alpha, b.activation.alpha);
  compare.same("activation limit", a.activation.limit, b.activation.limit);
  compare.same("dense ffn width", a.dense_ffn, b.dense_ffn);
  compare.same("expert width", a.expert_ffn, b.expert_ffn);
  compare.same("shared expert width", a.shared_ffn, b.shared_ffn);
  compare.same("shared expert gate", a.shared_gate, b.shared_gate);
  compare.same("q/k/v biases", a.qkv_bias, b.qkv_bias);
  compare.same("output projection bias", a.o_bias, b.o_bias);
  compare.same("head bias", a.head_bias, b.head_bias);
  compare.same("selection bias", a.selection_bias, b.selection_bias);
}

}  // namespace ef
