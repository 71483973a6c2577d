#include <vector>

#include "expertflow/model/blocks.h"

namespace ef {

namespace {

void dense_ffn(StepContext& c, const MatrixView& gate, const MatrixView& up, const MatrixView& down, int64_t rows,
               float* out) {
  State& st = c.state;
  c.backend.linear(c.stream, {gate, nullptr, rows, st.normed, st.ffn_gate});
  c.backend.linear(c.stream, {up, nullptr, rows, st.normed, st.ffn_up});
  // Shared experts and dense layers of all families here use plain SwiGLU; the clamped one belongs to gpt-oss, which
  // has neither.
  c.backend.activation(c.stream, {c.model.config.activation, rows * gate.rows, st.ffn_gate, st.ffn_up, st.ffn_gate});
  c.backend.linear(c.stream, {down, nullptr, rows, st.ffn_gate, out});
}

void observe(StepContext& c, LayerId layer, const RoutingView& routing) {
  const Config& config = c.model.config;
  const State& st = c.state;
  if (c.backend.memory_is_host()) {
    c.observer->on_routing(layer, st.normed, st.router_logits, routing);
    return;
  }
  const size_t rows = size_t(routing.tokens), chosen = rows * size_t(routing.top_k);
  std::vector<float> x(rows * size_t(config.hidden)), logits(rows * size_t(config.router.experts)), weights(chosen);
  std::vector<int32_t> ids(chosen);
  c.backend.copy_to_host(x.data(), st.normed, x.size() * sizeof(float), c.stream);
  c.backend.copy_to_host(logits.data(), st.router_logits, logits.size() * sizeof(float), c.stream);
  c.backend.copy_to_host(weights.data(), st.router_weights, chosen * sizeof(float), c.stream);
  c.backend.copy_to_host(ids.data(), st.router_ids, chosen * sizeof(int32_t), c.stream);
  c.stream.synchronize();
  c.observer->on_routing(layer, x.data(), logits.data(), {routing.tokens, routing.top_k, ids.data(), weights.data()});
}

void moe(StepContext& c, LayerId layer, const LayerWeights& w, int64_t rows) {
  State& st = c.state;
  const Config& config = c.model.config;
  route_rows(config, w, c.backend, c.stream, {rows, st.normed, st.router_logits, st.router_ids, st.router_weights});
  const RoutingView routing{rows, config.router.top_k, st.router_ids, st.router_weights};
  if (c.observer) observe(c, layer, routing);
  c.experts.run(layer, st.normed, routing, st.block_out, c.stream);
  if (config.shared_ffn == 0) return;
  dense_ffn(c, w.shared_gate, w.shared_up, w.shared_down, rows, st.shared_out);
  if (config.shared_gate) {
    c.backend.linear(c.stream, {w.shared_expert_gate, nullptr, rows, st.normed, st.shared_scale});
    c.backend.gated_add(c.stream, st.block_out, st.shared_out, st.shared_scale, rows, config.hidden);
  } else {
    c.backend.add_scaled(c.stream, st.block_out, st.shared_out, 1.f, rows * config.hidden);
  }
}

}  // namespace

void route_rows(const Config& config, const LayerWeights& layer, Backend& backend, Stream& stream, const RouteRows& r) {
  const RouterConfig& router = config.router;
  backend.linear(stream, {layer.router, layer.router_bias, r.rows, r.normed, r.logits});
  RouterArgs args;
  args.score = router.score;
  args.rows = r.rows;
  args.experts = router.experts, args.top_k = router.top_k;
  args.logits = r.logits, args.selection_bias = layer.selection_bias;
  args.groups = router.groups, args.top_groups = router.top_groups, args.group_score = router.group_score;
  args.renormalise = router.renormalise, args.renormalise_eps = router.renormalise_eps, args.scale = router.scale;
  args.jitter_eps = router.jitter_eps;
  args.ids = r.ids, args.weights = r.weights;
  backend.route(stream, args);
}

void ffn_block(StepContext& c, LayerId layer, int64_t rows) {
  const Config& config = c.model.config;
  const LayerWeights& w = c.model.weights.layers[size_t(layer)];
  c.backend.norm(c.stream, {config.norm, rows, config.hidden, config.norm_eps, w.ffn_norm, w.ffn_norm_bias, c.state.x,
                            c.state.normed});
  if (config.layers[size_t(layer)].sparse)
    moe(c, layer, w, rows);
  else
    dense_ffn(c, w.dense_gate, w.dense_up, w.dense_down, rows, c.state.block_out);
  c.backend.add_scaled(c.stream, c.state.x, c.state.block_out, config.residual_scale, rows * config.hidden);
}

}  // namespace ef
