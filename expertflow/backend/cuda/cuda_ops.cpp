#include "expertflow/backend/cuda/cuda_ops.h"

#include <algorithm>

#include "expertflow/backend/cuda/cuda_params.h"
#include "expertflow/base/errors.h"

namespace ef::cuda {
namespace {

constexpr bool same_order() {
  return int(Fmt::kF32) == int(Format::kF32) && int(Fmt::kF8E4M3) == int(Format::kF8E4M3) &&
         int(Fmt::kQ5_1) == int(Format::kQ5_1) && int(Fmt::kQ6K) == int(Format::kQ6K) &&
         int(Fmt::kMXFP4) == int(Format::kMXFP4) && int(Fmt::kCount) == int(Format::kU8);
}
static_assert(same_order());
static_assert(int(Score::kSparsemixer) == int(RouterScore::kSparsemixer));
static_assert(int(Act::kClampedSwiglu) == int(ActivationKind::kClampedSwiglu));

}  // namespace

Fmt fmt_of(const MatrixView& w) {
  EF_DCHECK(has_arithmetic(w.format) && w.layout == MatrixLayout::kRows);
  return Fmt(w.format);
}

Weights weights_of(const MatrixView& w, const float* bias) {
  return {reinterpret_cast<const uint8_t*>(w.data), w.format == Format::kF8E4M3 ? w.scales : nullptr, bias};
}

NormParams norm_params(const NormArgs& a) {
  return {a.kind == NormKind::kLayer, a.rows, a.width, a.eps, a.weight, a.bias, a.x, a.out};
}

KvParams kv_of(const KvView& kv, const BatchView& batch) {
  KvParams p;
  p.type = int(kv.type);
  p.block_tokens = kv.block_tokens, p.kv_heads = kv.kv_heads, p.k_dim = kv.k_dim, p.v_dim = kv.v_dim;
  p.k = reinterpret_cast<uint8_t*>(kv.k), p.v = reinterpret_cast<uint8_t*>(kv.v);
  p.rows = batch.rows;
  p.position = batch.position, p.sequence = batch.sequence, p.block_table = batch.block_table;
  p.max_blocks = batch.max_blocks;
  return p;
}

int64_t reach_of(const AttentionArgs& a) {
  return a.batch.reach > 0 ? a.batch.reach : int64_t(a.batch.max_blocks) * a.kv.block_tokens;
}

void embed(CudaStream& stream, const MatrixView& table, const TokenId* ids, int64_t n, float scale, float* out) {
  if (n == 0) return;
  static_assert(sizeof(TokenId) == sizeof(int32_t));
  check(embed(fmt_of(table), weights_of(table, nullptr), table.cols, ids, n, scale, out, stream.handle()), "embed");
}

void linear(CudaStream& stream, const LinearArgs& a) {
  if (a.rows <= 0) return;
  MatmulParams p;
  p.format = fmt_of(a.w);
  p.n = a.w.rows, p.cols = a.w.cols;
  p.single.w[0] = weights_of(a.w, a.bias);
  p.rows = a.rows;
  p.x = a.x, p.x_stride = a.w.cols;
  p.out = a.out, p.out_stride = a.w.rows;
  check(matmul(p, stream.handle()), "linear");
}

void head_linear(CudaStream& stream, const HeadLinearArgs& a) {
  if (a.rows <= 0) return;
  EF_DCHECK(a.w.rows % a.heads == 0);
  MatmulParams p;
  p.format = fmt_of(a.w);
  p.n = a.w.rows / a.heads, p.cols = a.w.cols;
  p.single.w[0] = weights_of(a.w, nullptr);
  p.rows = a.rows;
  p.x = a.x, p.x_stride = a.x_row_stride;
  p.out = a.out, p.out_stride = a.out_row_stride;
  p.heads = a.heads, p.x_head_stride = a.x_head_stride, p.out_head_stride = a.out_head_stride;
  check(matmul(p, stream.handle()), "head_linear");
}

void store_kv(CudaStream& stream, const StoreKvArgs& a) {
  check(store_kv(kv_of(a.kv, a.batch), a.k, a.v, stream.handle()), "store_kv");
}

void attention(CudaStream& stream, const AttentionArgs& a) {
  if (a.batch.rows <= 0) return;
  EF_DCHECK(a.heads % a.kv.kv_heads == 0);
  AttentionParams p;
  p.kv = kv_of(a.kv, a.batch);
  p.heads = a.heads, p.window = a.window, p.scale = a.scale;
  p.sinks = a.sinks;
  p.reach = reach_of(a);
  const uint64_t of_row = uint64_t(attention_scratch_floats(1, a.heads, a.kv.v_dim, p.reach));
  const int64_t wave = std::clamp<int64_t>(int64_t(kWaveFloats / of_row), 1, a.batch.rows);
  p.scratch = stream.scratch(uint64_t(wave) * of_row);
  for (int64_t row = 0; row < a.batch.rows; row += wave) {
    p.kv.rows = std::min(wave, a.batch.rows - row);
    p.kv.position = a.batch.position + row, p.kv.sequence = a.batch.sequence + row;
    p.q = a.q + row * a.heads * a.kv.k_dim;
    p.out = a.out + row * a.heads * a.kv.v_dim;
    check(attention(p, stream.handle()), "attention");
  }
}

RouteParams route_params(const RouterArgs& a) {
  EF_DCHECK(a.top_k <= a.experts && (a.groups == 1 || a.experts % a.groups == 0));
  RouteParams p;
  p.score = Score(a.score);
  p.rows = a.rows, p.experts = a.experts, p.top_k = a.top_k;
  p.groups = a.groups, p.top_groups = a.top_groups;
  p.sum_of_top2 = a.group_score == GroupScore::kSumOfTop2;
  p.renormalise = a.renormalise, p.renormalise_eps = a.renormalise_eps;
  p.scale = a.scale, p.jitter_eps = a.jitter_eps;
  p.logits = a.logits, p.selection_bias = a.selection_bias;
  p.ids = a.ids, p.weights = a.weights;
  constexpr uint64_t kMostShared = 48 << 10;
  EF_CHECK(route_shared_bytes(p) <= kMostShared, DeviceError, "cuda: route: {} experts are more than this op takes",
           a.experts);
  return p;
}

void route(CudaStream& stream, const RouterArgs& a) { check(route(route_params(a), stream.handle()), "route"); }

void norm(CudaStream& stream, const NormArgs& a) { check(norm(norm_params(a), stream.handle()), "norm"); }

void rope(CudaStream& stream, const RopeArgs& a) {
  EF_DCHECK(a.rotary % 2 == 0 && a.offset + a.rotary <= a.head_dim);
  check(rope({a.rows, a.heads, a.head_dim, a.offset, a.rotary, a.row_stride, a.interleaved, a.cos, a.sin, a.x},
             stream.handle()),
        "rope");
}

void top(CudaStream& stream, const TopArgs& a) {
  EF_DCHECK(a.top <= kMostTop && a.top <= a.width);
  TopParams p{a.rows, a.width, a.top, a.x, a.ids, a.values, nullptr};
  p.scratch = stream.scratch((top_scratch(p) + sizeof(float) - 1) / sizeof(float));
  check(top(p, stream.handle()), "top");
}

void activation(CudaStream& stream, const ActivationArgs& a) {
  check(activation(
            {Act(a.activation.kind), a.activation.alpha, a.activation.limit, 1, a.n, a.n, a.n, a.gate, a.up, a.out},
            stream.handle()),
        "activation");
}

}  // namespace ef::cuda
