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
                                r.interleaved, s.c.state.inputs.cos, s.c.state.inputs.sin, x});
}

// What the projections of a layer attend to; out: state.attn.
AttendArgs attend_args(Site& s, float* q, float* k, float* v) {
  AttendArgs a;
  a.attention = {s.c.kv.view(s.layer),
                 s.batch,
                 s.config.heads,
                 s.config.layers[size_t(s.layer)].window,
                 s.config.attention_scale,
                 s.w.sinks,
                 q,
                 s.c.state.attn};
  a.q = q, a.k = k, a.v = v;
  return a;
}

NormArgs block_norm(Site& s) {
  return {s.config.norm, s.rows(),           s.config.hidden, s.config.norm_eps,
          s.w.attn_norm, s.w.attn_norm_bias, s.c.state.x,     s.c.state.normed};
}

// state.x += the block's output.
LinearAddArgs project_out(Site& s, const float* heads_out) {
  State& st = s.c.state;
  return {{s.w.o, s.w.o_bias, s.rows(), heads_out, st.block_out}, st.x, s.config.residual_scale};
}

AttendArgs grouped_query_attend(Site& s) {
  State& st = s.c.state;
  const Config& config = s.config;
  AttendArgs a = attend_args(s, st.q, st.k, st.v);
  if (config.qk_norm != QkNorm::kNone) a.q_norm = s.w.q_norm, a.k_norm = s.w.k_norm;
  a.norm_whole = config.qk_norm == QkNorm::kWhole;
  a.norm_eps = config.norm_eps;
  a.clip = config.clip_qkv;
  if (config.rope.kind != RopeKind::kNone) a.rotary = config.rope.rotary_dim;
  a.interleaved = config.rope.interleaved;
  a.cos = st.inputs.cos, a.sin = st.inputs.sin;
  return a;
}

void grouped_query(Site& s) {
  StepContext& c = s.c;
  const LayerArgs a = grouped_query_args(c, s.layer, s.batch);
  const LinearOut outs[] = {a.q, a.k, a.v};
  c.backend.norm_linear(c.stream, {a.norm, outs});
  c.backend.attend(c.stream, a.attend);
  c.backend.linear_add(c.stream, a.o);
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

  c.backend.norm(c.stream, block_norm(s));
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
  c.backend.attend(c.stream, attend_args(s, st.q_latent, st.k, nullptr));
  c.backend.head_linear(c.stream, {s.w.v_b, s.rows(), heads, st.attn, int64_t(heads) * m.kv_lora, m.kv_lora,
                                   st.heads_out, int64_t(heads) * m.v_dim, m.v_dim});
  c.backend.linear_add(c.stream, project_out(s, st.heads_out));
}

}  // namespace

LayerArgs grouped_query_args(StepContext& c, LayerId layer, const BatchView& batch) {
  Site s{c, c.model.config, c.model.weights.layers[size_t(layer)], layer, batch};
  State& st = c.state;
  LayerArgs a;
  a.norm = block_norm(s);
  a.q = {s.w.q, s.w.q_bias, st.q}, a.k = {s.w.k, s.w.k_bias, st.k}, a.v = {s.w.v, s.w.v_bias, st.v};
  a.attend = grouped_query_attend(s);
  a.o = project_out(s, st.attn);
  return a;
}

void attention_block(StepContext& c, LayerId layer, const BatchView& batch) {
  const Config& config = c.model.config;
  Site s{c, config, c.model.weights.layers[size_t(layer)], layer, batch};
  if (config.latent)
    latent(s);
  else
    grouped_query(s);
}

}  // namespace ef
