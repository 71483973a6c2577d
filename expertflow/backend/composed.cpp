// The compositions of backend.h out of single ops.
#include <new>

#include "expertflow/backend/backend.h"
#include "expertflow/base/errors.h"

namespace ef {

std::shared_ptr<std::byte> Backend::allocate_host(uint64_t bytes) {
  constexpr std::align_val_t kAlign{64};
  auto* data = static_cast<std::byte*>(::operator new(size_t(bytes), kAlign));
  return {data, [](std::byte* p) { ::operator delete(p, kAlign); }};
}

void Backend::norm_linear(Stream& stream, const NormLinearArgs& a) {
  norm(stream, a.norm);
  for (const LinearOut& out : a.outs) linear(stream, {out.w, out.bias, a.norm.rows, a.norm.out, out.out});
}

void Backend::linear_add(Stream& stream, const LinearAddArgs& a) {
  linear(stream, a.linear);
  add_scaled(stream, a.add_to, a.linear.out, a.scale, a.linear.rows * a.linear.w.rows);
}

void Backend::gated_linear(Stream& stream, const GatedLinearArgs& a) {
  linear(stream, {a.gate, nullptr, a.rows, a.x, a.out});
  linear(stream, {a.up, nullptr, a.rows, a.x, a.up_out});
  activation(stream, {a.activation, a.rows * a.gate.rows, a.out, a.up_out, a.out});
}

void Backend::norm_route(Stream& stream, const NormRouteArgs& a) {
  norm(stream, a.norm);
  linear(stream, {a.router, a.bias, a.norm.rows, a.norm.out, a.logits});
  RouterArgs choice = a.route;
  choice.logits = a.logits;
  route(stream, choice);
}

void Backend::attend(Stream& stream, const AttendArgs& a) {
  const KvView& kv = a.attention.kv;
  const int64_t rows = a.attention.batch.rows;
  const auto prepare = [&](float* x, const float* weight, int heads) {
    const int64_t width = int64_t(heads) * kv.k_dim;
    if (weight) {
      const int64_t norm_width = a.norm_whole ? width : kv.k_dim;
      norm(stream, {NormKind::kRms, rows * width / norm_width, norm_width, a.norm_eps, weight, nullptr, x, x});
    }
    if (a.clip > 0) clamp(stream, x, -a.clip, a.clip, rows * width);
    if (a.rotary > 0) rope(stream, {rows, heads, kv.k_dim, 0, a.rotary, width, a.interleaved, a.cos, a.sin, x});
  };
  prepare(a.q, a.q_norm, a.attention.heads);
  prepare(a.k, a.k_norm, kv.kv_heads);
  if (a.clip > 0 && a.v) clamp(stream, a.v, -a.clip, a.clip, rows * kv.kv_heads * kv.v_dim);
  store_kv(stream, {kv, a.attention.batch, a.k, a.v});
  AttentionArgs args = a.attention;
  args.q = a.q;
  attention(stream, args);
}

Buffer Backend::expert_table(std::span<const ExpertView>, Stream&) { return {}; }

void Backend::routed_experts(Stream&, const RoutedExpertsArgs&) {
  fail<DeviceError>("{}: routed experts: this backend does not route on the device", name());
}

void Backend::layers(Stream& stream, std::span<const LayerArgs> all) {
  for (const LayerArgs& a : all) {
    const LinearOut outs[] = {a.q, a.k, a.v};
    norm_linear(stream, {a.norm, outs});
    attend(stream, a.attend);
    linear_add(stream, a.o);
    norm_route(stream, a.route);
    routed_experts(stream, a.experts);
  }
}

void Backend::top(Stream&, const TopArgs&) {
  fail<DeviceError>("{}: top: this backend leaves the choice of tokens to the host", name());
}

}  // namespace ef
