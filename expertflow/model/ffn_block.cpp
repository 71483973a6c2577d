#include <vector>

#include "expertflow/model/blocks.h"

namespace ef {

namespace {

// Shared experts and dense layers of all families here use plain SwiGLU; the clamped one belongs to gpt-oss, which has
// neither. The result is left in out, or, if add_to is given, added there.
struct Dense {
  const MatrixView &gate, &up, &down;
};
void dense_ffn(StepContext& c, const Dense& w, int64_t rows, float* out, float* add_to, float scale) {
  State& st = c.state;
  c.backend.gated_linear(c.stream, {w.gate, w.up, c.model.config.activation, rows, st.normed, st.ffn_gate, st.ffn_up});
  const LinearArgs down{w.down, nullptr, rows, st.ffn_gate, out};
  if (add_to)
    c.backend.linear_add(c.stream, {down, add_to, scale});
  else
    c.backend.linear(c.stream, down);
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

RouterArgs router_args(const Config& config, const LayerWeights& layer, const RouteRows& r) {
  const RouterConfig& router = config.router;
  RouterArgs args;
  args.score = router.score;
  args.rows = r.rows;
  args.experts = router.experts, args.top_k = router.top_k;
  args.logits = r.logits, args.selection_bias = layer.selection_bias;
  args.groups = router.groups, args.top_groups = router.top_groups, args.group_score = router.group_score;
  args.renormalise = router.renormalise, args.renormalise_eps = router.renormalise_eps, args.scale = router.scale;
  args.jitter_eps = router.jitter_eps;
  args.ids = r.ids, args.weights = r.weights;
  return args;
}

NormArgs block_norm(const Config& config, const LayerWeights& w, const State& st, int64_t rows) {
  return {config.norm, rows, config.hidden, config.norm_eps, w.ffn_norm, w.ffn_norm_bias, st.x, st.normed};
}

NormRouteArgs route_args(StepContext& c, const LayerWeights& w, int64_t rows) {
  State& st = c.state;
  const Config& config = c.model.config;
  const RouteRows r{rows, st.normed, st.router_logits, st.router_ids, st.router_weights};
  return {block_norm(config, w, st, rows), w.router, w.router_bias, st.router_logits, router_args(config, w, r)};
}

void moe(StepContext& c, LayerId layer, const LayerWeights& w, int64_t rows) {
  State& st = c.state;
  const Config& config = c.model.config;
  c.backend.norm_route(c.stream, route_args(c, w, rows));
  const RoutingView routing{rows, config.router.top_k, st.router_ids, st.router_weights};
  if (c.observer) {
    observe_residual(c, layer, true, rows);
    observe(c, layer, routing);
  }
  if (config.shared_ffn == 0) {
    c.experts.run(layer, st.normed, routing, {st.block_out, st.x, config.residual_scale}, c.stream);
    return;
  }
  c.experts.run(layer, st.normed, routing, st.block_out, c.stream);
  const Dense shared{w.shared_gate, w.shared_up, w.shared_down};
  if (config.shared_gate) {
    dense_ffn(c, shared, rows, st.shared_out, nullptr, 0);
    c.backend.linear(c.stream, {w.shared_expert_gate, nullptr, rows, st.normed, st.shared_scale});
    c.backend.gated_add(c.stream, st.block_out, st.shared_out, st.shared_scale, rows, config.hidden);
  } else {
    dense_ffn(c, shared, rows, st.shared_out, st.block_out, 1.f);
  }
  c.backend.add_scaled(c.stream, st.x, st.block_out, config.residual_scale, rows * config.hidden);
}

}  // namespace

void observe_residual(StepContext& c, LayerId layer, bool routed, int64_t rows) {
  if (!c.observer || !c.observer->wants_residual()) return;
  if (c.backend.memory_is_host()) {
    c.observer->on_residual(layer, routed, rows, c.state.x);
    return;
  }
  std::vector<float> x(size_t(rows) * size_t(c.model.config.hidden));
  c.backend.copy_to_host(x.data(), c.state.x, x.size() * sizeof(float), c.stream);
  c.stream.synchronize();
  c.observer->on_residual(layer, routed, rows, x.data());
}

void route_rows(const Config& config, const LayerWeights& layer, Backend& backend, Stream& stream, const RouteRows& r) {
  backend.linear(stream, {layer.router, layer.router_bias, r.rows, r.normed, r.logits});
  backend.route(stream, router_args(config, layer, r));
}

std::optional<LayerArgs> whole_layer(StepContext& c, LayerId layer, const BatchView& batch) {
  const Config& config = c.model.config;
  const State& st = c.state;
  if (c.observer || config.latent || config.shared_ffn > 0 || !config.layers[size_t(layer)].sparse) return {};
  const std::optional<RoutedExpertsArgs> experts = c.experts.whole(layer);
  if (!experts) return {};
  LayerArgs a = grouped_query_args(c, layer, batch);
  a.route = route_args(c, c.model.weights.layers[size_t(layer)], batch.rows);
  a.experts = *experts;
  a.experts.rows = batch.rows, a.experts.x = st.normed;
  a.experts.ids = st.router_ids, a.experts.weights = st.router_weights;
  a.experts.out = st.block_out, a.experts.add_to = st.x, a.experts.add_scale = config.residual_scale;
  return a;
}

void ffn_block(StepContext& c, LayerId layer, int64_t rows) {
  const Config& config = c.model.config;
  const LayerWeights& w = c.model.weights.layers[size_t(layer)];
  if (config.layers[size_t(layer)].sparse) {
    moe(c, layer, w, rows);
    return;
  }
  c.backend.norm(c.stream, block_norm(config, w, c.state, rows));
  dense_ffn(c, {w.dense_gate, w.dense_up, w.dense_down}, rows, c.state.block_out, c.state.x, config.residual_scale);
}

}  // namespace ef
