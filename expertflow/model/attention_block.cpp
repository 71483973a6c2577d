#include "expertflow/model/blocks.h"

namespace ef {

namespace {

struct Site {
  StepContext& c;
  const Config& config;
  const LayerWeights& w;
  LayerId layer;
  const BatchView& batch;
  int64_t rows() const { return batch.rows; }
};

void rope(Site& s, float* x, int heads, int head_dim, int offset) {
  const RopeConfig& r = s.config.rope;
  if (r.kind == RopeKind::kNone || r.rotary_dim == 0) return;
  s.c.backend.rope(s.c.stream, {s.rows(), heads, head_dim, offset, r.rotary_dim, int64_t(heads) * head_dim,
                                r.interleaved, s.c.state.cos, s.c.state.sin, x});
}

void qk_norm(Site& s, float* x, const float* weight, int heads) {
  if (s.config.qk_norm == QkNorm::kNone) return;
  const bool whole = s.config.qk_norm == QkNorm::kWhole;
  const int64_t width = whole ? int64_t(heads) * s.config.head_dim : s.config.head_dim;
  const int64_t rows = whole ? s.rows() : s.rows() * heads;
  s.c.backend.norm(s.c.stream, {NormKind::kRms, rows, width, s.config.norm_eps, weight, nullptr, x, x});
}

void attend(Site& s, const float* q, const float* k, const float* v) {
  const KvView kv = s.c.kv.view(s.layer);
  s.c.backend.store_kv(s.c.stream, {kv, s.batch, k, v});
  s.c.backend.attention(s.c.stream, {kv, s.batch, s.config.heads, s.config.layers[size_t(s.layer)].window,
                                     s.config.attention_scale, s.w.sinks, q, s.c.state.attn});
}

// Grouped-query attention; out: state.block_out.
void grouped_query(Site& s) {
  StepContext& c = s.c;
  State& st = c.state;
  const Config& config = s.config;
  c.backend.linear(c.stream, {s.w.q, s.w.q_bias, s.rows(), st.normed, st.q});
  c.backend.linear(c.stream, {s.w.k, s.w.k_bias, s.rows(), st.normed, st.k});
  c.backend.linear(c.stream, {s.w.v, s.w.v_bias, s.rows(), st.normed, st.v});
  qk_norm(s, st.q, s.w.q_norm, config.heads);
  qk_norm(s, st.k, s.w.k_norm, config.kv_heads);
  if (config.clip_qkv > 0) {
    c.backend.clamp(c.stream, st.q, -config.clip_qkv, config.clip_qkv, s.rows() * s.w.q.rows);
    c.backend.clamp(c.stream, st.k, -config.clip_qkv, config.clip_qkv, s.rows() * s.w.k.rows);
    c.backend.clamp(c.stream, st.v, -config.clip_qkv, config.clip_qkv, s.rows() * s.w.v.rows);
  }
  rope(s, st.q, config.heads, config.head_dim, 0);
  rope(s, st.k, config.kv_heads, config.head_dim, 0);
  attend(s, st.q, st.k, st.v);
  c.backend.linear(c.stream, {s.w.o, s.w.o_bias, s.rows(), st.attn, st.block_out});
}

// Multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv:2405.04434, section 2.1): queries are moved into
// the latent space, so that the cache holds one compressed row a token and no key or value is ever expanded.
void latent(Site& s) {
  StepContext& c = s.c;
  State& st = c.state;
  const Config& config = s.config;
  const LatentConfig& m = *config.latent;
  const int heads = config.heads;
  const int64_t head_dim = m.nope + m.rope, row = m.kv_lora + m.rope;

  const float* q_in = st.normed;
  if (m.q_lora > 0) {
    c.backend.linear(c.stream, {s.w.q_a, nullptr, s.rows(), st.normed, st.q_lora});
    c.backend.norm(c.stream,
                   {NormKind::kRms, s.rows(), m.q_lora, config.norm_eps, s.w.q_a_norm, nullptr, st.q_lora, st.q_lora});
    q_in = st.q_lora;
  }
  c.backend.linear(c.stream, {s.w.q, s.w.q_bias, s.rows(), q_in, st.q});
  rope(s, st.q, heads, int(head_dim), m.nope);

  // kv_a gives [latent | k_rope] a token; st.k becomes the cached row.
  c.backend.linear(c.stream, {s.w.kv_a, nullptr, s.rows(), st.normed, st.k});
  c.backend.copy_2d(c.stream, st.latent, m.kv_lora, st.k, row, m.kv_lora, s.rows());
  c.backend.norm(c.stream,
                 {NormKind::kRms, s.rows(), m.kv_lora, config.norm_eps, s.w.kv_a_norm, nullptr, st.latent, st.latent});
  c.backend.copy_2d(c.stream, st.k, row, st.latent, m.kv_lora, m.kv_lora, s.rows());
  rope(s, st.k, 1, int(row), m.kv_lora);

  c.backend.head_linear(c.stream,
                        {s.w.k_b, s.rows(), heads, st.q, heads * head_dim, head_dim, st.q_latent, heads * row, row});
  c.backend.copy_2d(c.stream, st.q_latent + m.kv_lora, row, st.q + m.nope, head_dim, m.rope, s.rows() * heads);
  attend(s, st.q_latent, st.k, nullptr);
  c.backend.head_linear(c.stream, {s.w.v_b, s.rows(), heads, st.attn, int64_t(heads) * m.kv_lora, m.kv_lora,
                                   st.heads_out, int64_t(heads) * m.v_dim, m.v_dim});
  c.backend.linear(c.stream, {s.w.o, s.w.o_bias, s.rows(), st.heads_out, st.block_out});
}

}  // namespace

void attention_block(StepContext& c, LayerId layer, const BatchView& batch) {
  const Config& config = c.model.config;
  Site s{c, config, c.model.weights.layers[size_t(layer)], layer, batch};
  c.backend.norm(c.stream, {config.norm, batch.rows, config.hidden, config.norm_eps, s.w.attn_norm, s.w.attn_norm_bias,
                            c.state.x, c.state.normed});
  if (config.latent)
    latent(s);
  else
    grouped_query(s);
  c.backend.add_scaled(c.stream, c.state.x, c.state.block_out, config.residual_scale, batch.rows * config.hidden);
}

}  // namespace ef
