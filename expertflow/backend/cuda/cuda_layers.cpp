// Layers of one row as a whole: whether device/layers.cu has a kernel for them, and what it takes.
#include <algorithm>
#include <tuple>

#include "expertflow/backend/cuda/cuda_fast.h"
#include "expertflow/backend/cuda/cuda_params.h"
#include "expertflow/backend/cuda/device/layers.h"

namespace ef::cuda {
namespace {

bool by_sixteen(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool plain_norm(const NormArgs& n, const float* x, int64_t width) {
  return n.kind == NormKind::kRms && !n.bias && n.rows == 1 && n.width == width && n.x == x && by_sixteen(n.weight);
}

bool is(const MatrixView& w, Format format, int64_t rows, int64_t cols) {
  return w.format == format && w.layout == MatrixLayout::kRows && w.rows == rows && w.cols == cols &&
         by_sixteen(w.data);
}

// Of all layers alike, from the first.
LayersParams common(const LayerArgs& a) {
  LayersParams p;
  const AttentionArgs& t = a.attend.attention;
  p.format = Fmt(a.q.w.format), p.router_format = Fmt(a.route.router.format);
  p.hidden = int(a.norm.width), p.heads = t.heads, p.kv_heads = t.kv.kv_heads, p.head_dim = t.kv.k_dim;
  p.ffn = int(a.experts.ffn);
  p.attn_eps = a.norm.eps, p.head_eps = a.attend.norm_eps, p.ffn_eps = a.route.norm.eps;
  p.kv_type = int(t.kv.type), p.block_tokens = t.kv.block_tokens;
  p.position = t.batch.position, p.sequence = t.batch.sequence;
  p.scale = t.scale, p.clip = a.attend.clip;
  p.rotary = a.attend.rotary, p.interleaved = a.attend.interleaved, p.cos = a.attend.cos, p.sin = a.attend.sin;
  p.route = route_params(a.route.route);
  p.activation.kind = Act(a.experts.activation.kind);
  p.activation.alpha = a.experts.activation.alpha, p.activation.limit = a.experts.activation.limit;
  p.attn_scale = a.o.scale, p.experts_scale = a.experts.add_scale;
  p.x = a.o.add_to;
  return p;
}

LayerOf layer_of(const LayerArgs& a) {
  LayerOf l;
  const auto data = [](const MatrixView& w) { return reinterpret_cast<const uint8_t*>(w.data); };
  const AttentionArgs& t = a.attend.attention;
  l.attn_norm = a.norm.weight, l.ffn_norm = a.route.norm.weight;
  l.matrix[0] = data(a.q.w), l.matrix[1] = data(a.k.w), l.matrix[2] = data(a.v.w), l.matrix[3] = data(a.o.linear.w);
  l.q_bias = a.q.bias, l.k_bias = a.k.bias, l.v_bias = a.v.bias, l.o_bias = a.o.linear.bias;
  l.q_norm = a.attend.q_norm, l.k_norm = a.attend.k_norm, l.sinks = t.sinks;
  l.router = data(a.route.router), l.router_bias = a.route.bias, l.selection_bias = a.route.route.selection_bias;
  l.table = reinterpret_cast<const ExpertEntry*>(a.experts.table);
  l.keys = reinterpret_cast<uint8_t*>(t.kv.k), l.values = reinterpret_cast<uint8_t*>(t.kv.v);
  l.block_table = t.batch.block_table, l.max_blocks = t.batch.max_blocks, l.window = t.window;
  return l;
}

// Whether a layer is of the kind that the kernel knows, with the shapes of p.
bool fits(const LayersParams& p, const LayerArgs& a) {
  const AttentionArgs& t = a.attend.attention;
  const ExpertView* e = a.experts.kind;
  const Format format = Format(p.format);
  const int64_t q = int64_t(p.heads) * p.head_dim, kv = int64_t(p.kv_heads) * p.head_dim;
  if (!plain_norm(a.norm, p.x, p.hidden) || !plain_norm(a.route.norm, p.x, p.hidden)) return false;
  if (!is(a.q.w, format, q, p.hidden) || !is(a.k.w, format, kv, p.hidden) || !is(a.v.w, format, kv, p.hidden) ||
      !is(a.o.linear.w, format, p.hidden, q) || !is(a.route.router, Format(p.router_format), p.route.experts, p.hidden))
    return false;
  if (t.batch.rows != 1 || !t.kv.v || t.kv.v_dim != p.head_dim || !by_sixteen(t.kv.k) || !by_sixteen(t.kv.v))
    return false;
  if (a.attend.norm_whole && (a.attend.q_norm || a.attend.k_norm)) return false;
  if (a.o.linear.x != t.out || a.o.add_to != p.x || a.experts.add_to != p.x) return false;
  if (a.experts.x != a.route.norm.out || a.experts.ids != a.route.route.ids ||
      a.experts.weights != a.route.route.weights || a.experts.experts != p.route.experts ||
      a.experts.top_k != p.route.top_k)
    return false;
  return e && !e->gate_bias && !e->up_bias && !e->down_bias && is(e->gate, format, p.ffn, p.hidden) &&
         is(e->up, format, p.ffn, p.hidden) && is(e->down, format, p.hidden, p.ffn) && a.experts.table;
}

bool same_numbers(const LayersParams& a, const LayersParams& b) {
  const auto rules = [](const RouteParams& r) {
    return std::tuple(r.score, r.experts, r.top_k, r.groups, r.top_groups, r.sum_of_top2, r.renormalise,
                      r.renormalise_eps, r.scale, r.jitter_eps);
  };
  const auto rest = [](const LayersParams& p) {
    return std::tuple(p.attn_eps, p.head_eps, p.ffn_eps, p.kv_type, p.block_tokens, p.position, p.sequence, p.scale,
                      p.clip, p.rotary, p.interleaved, p.cos, p.sin, p.attn_scale, p.experts_scale, p.activation.kind,
                      p.activation.alpha, p.activation.limit, p.head_dim, p.heads, p.kv_heads);
  };
  return rules(a.route) == rules(b.route) && rest(a) == rest(b);
}

}  // namespace

bool Fast::takes_layers(std::span<const LayerArgs> all) const {
  if (all.empty() || all.front().attend.attention.batch.rows != 1) return false;
  LayersParams p = common(all.front());
  p.count = 1;
  return layers_takes(p) && std::all_of(all.begin(), all.end(),
                                        [&](const LayerArgs& a) { return fits(p, a) && same_numbers(p, common(a)); });
}

void Fast::layers(CudaStream& stream, std::span<const LayerArgs> all) const {
  for (size_t first = 0; first < all.size(); first += kLayersAtOnce) {
    LayersParams p = common(all.front());
    p.count = int(std::min(size_t(kLayersAtOnce), all.size() - first));
    for (int i = 0; i < p.count; ++i) p.layer[i] = layer_of(all[first + size_t(i)]);
    p.scratch = stream.scratch((layers_scratch(p) + sizeof(float) - 1) / sizeof(float));
    p.arrived = stream.counters(kLayersCounters);
    check(cuda::layers(p, stream.handle()), "layers");
  }
}

}  // namespace ef::cuda
