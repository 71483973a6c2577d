#include "expertflow/backend/cuda/cuda_fast.h"

#include <algorithm>

#include "expertflow/backend/cuda/cuda_params.h"
#include "expertflow/base/errors.h"

namespace ef::cuda {
namespace {

// Rows from which tensor cores win over matrix-vector products that read the weights once for kMatvecRows rows.
// Where a shape was not measured.
constexpr int64_t kDenseGemmRows = 5;
// Rows of a layer event, likewise: below, few experts have more than a handful of rows.
constexpr int64_t kRoutedGemmRows = 65;
// Rows up to which a router is a matrix-vector product, whose blocks hold all rows.
constexpr int64_t kOneBlockRoutes = 2;

void* scratch_bytes(CudaStream& stream, uint64_t bytes) {
  return stream.scratch((bytes + sizeof(float) - 1) / sizeof(float));
}

Input input_of(const NormArgs& n) {
  Input in;
  in.x = n.x, in.stride = n.width;
  in.norm_weight = n.weight, in.norm_bias = n.bias;
  in.centred = n.kind == NormKind::kLayer, in.eps = n.eps;
  in.normed = n.out;
  return in;
}

// The same from row `first` on.
Input rows_from(Input in, int64_t first, int64_t cols) {
  in.x += first * in.stride;
  if (in.normed) in.normed += first * cols;
  return in;
}

// In launches of kMatvecRows.
void few_rows(CudaStream& stream, MatvecParams p, int64_t rows) {
  const MatvecParams whole = p;
  for (int64_t first = 0; first < rows; first += kMatvecRows) {
    p.rows = int(std::min<int64_t>(kMatvecRows, rows - first));
    p.in = rows_from(whole.in, first, p.cols);
    for (int m = 0; m < p.count; ++m)
      if (p.product[m].out) p.product[m].out = whole.product[m].out + first * p.product[m].n;
    if (p.add_to) p.add_to = whole.add_to + first * p.product[0].n;
    check(matvec(p, stream.handle()), "linear of few rows");
  }
}

// Float32 weights are not rounded: tensor cores know no such numbers.
bool for_tensor_cores(const MatrixView& w) { return w.format != Format::kF32; }

GemmParams gemm_of(const LinearArgs& a) {
  GemmParams p;
  p.format = fmt_of(a.w), p.w = weights_of(a.w, a.bias);
  p.rows = a.rows, p.n = a.w.rows, p.cols = a.w.cols;
  p.x = a.x, p.x_stride = a.w.cols;
  p.out = a.out, p.out_stride = a.w.rows;
  return p;
}

void many_rows(CudaStream& stream, GemmParams p, bool exact) {
  if (exact) {
    check(gemm_exact(p, stream.handle()), "linear of many rows in float32");
    return;
  }
  p.scratch = scratch_bytes(stream, gemm_scratch(p));
  RankSums sums;
  p.sums = p.norm ? stream.left() : nullptr;
  if (gemm_takes_sums(p))
    sums = stream.take(), p.sums = &sums;
  else
    p.sums = nullptr;
  check(gemm(p, stream.handle()), "linear of many rows");
}

Product product_of(const LinearOut& out) { return {fmt_of(out.w), weights_of(out.w, out.bias), out.w.rows, out.out}; }

void few_rows_of(CudaStream& stream, const NormLinearArgs& a, Meet meet) {
  constexpr size_t kMost = std::size(MatvecParams{}.product);
  for (size_t first = 0; first < a.outs.size(); first += kMost) {
    MatvecParams p;
    p.meet = meet;
    p.cols = a.norm.width;
    p.in = input_of(a.norm);
    if (first > 0) p.in.normed = nullptr;
    p.count = int(std::min(kMost, a.outs.size() - first));
    for (int m = 0; m < p.count; ++m) p.product[m] = product_of(a.outs[first + size_t(m)]);
    few_rows(stream, p, a.norm.rows);
  }
}

TunedShape shape_of(const MatrixView& w) { return {std::string(format_info(w.format).name), w.rows, w.cols}; }
TunedShape shape_of(const RoutedExpertsArgs& a) {
  const auto name = [](const MatrixView& w) { return format_info(w.format).name; };
  return {fmt::format("{}/{}/{}", name(a.kind->gate), name(a.kind->up), name(a.kind->down)), a.ffn, a.hidden, a.experts,
          a.top_k};
}

ActivationParams activation_of(const Activation& a) {
  ActivationParams p;
  p.kind = Act(a.kind);
  p.alpha = a.alpha, p.limit = a.limit;
  return p;
}

}  // namespace

// Whether so many rows are for tensor cores; float32 weights then go to the exact ops.
bool Fast::many(Way way, int64_t rows, const MatrixView& w) const {
  if (way != Way::kByShape) return way == Way::kManyRows;
  return rows >= tuning_.rows(shape_of(w), kDenseGemmRows);
}

void Fast::linear(CudaStream& stream, const LinearArgs& a) const { linear(stream, a, Way::kByShape); }

void Fast::linear(CudaStream& stream, const LinearArgs& a, Way way) const {
  if (a.rows <= 0) return;
  if (many(way, a.rows, a.w)) {
    many_rows(stream, gemm_of(a), !for_tensor_cores(a.w));
    return;
  }
  MatvecParams p;
  p.meet = meet_;
  p.cols = a.w.cols;
  p.in.x = a.x, p.in.stride = a.w.cols;
  p.product[0] = product_of({a.w, a.bias, a.out});
  few_rows(stream, p, a.rows);
}

void Fast::norm_linear(CudaStream& stream, const NormLinearArgs& a) const {
  if (a.norm.rows <= 0) return;
  if (a.outs.empty() || !many(Way::kByShape, a.norm.rows, a.outs.front().w)) {
    few_rows_of(stream, a, meet_);
    return;
  }
  const NormParams norm = norm_params(a.norm);
  bool normed = !for_tensor_cores(a.outs.front().w);
  if (normed) cuda::norm(stream, a.norm);
  size_t i = 0;
  while (i < a.outs.size()) {
    const LinearOut& out = a.outs[i++];
    GemmParams p = gemm_of({out.w, out.bias, a.norm.rows, a.norm.out, out.out});
    const bool exact = !for_tensor_cores(out.w);
    if (!normed) p.norm = &norm;
    normed = true;
    while (!exact && i < a.outs.size() && p.more < int(std::size(p.also)) && for_tensor_cores(a.outs[i].w))
      p.also[p.more++] = product_of(a.outs[i++]);
    many_rows(stream, p, exact);
  }
}

void Fast::linear_add(CudaStream& stream, const LinearAddArgs& a) const {
  const LinearArgs& l = a.linear;
  if (l.rows <= 0) return;
  if (many(Way::kByShape, l.rows, l.w)) {
    GemmParams p = gemm_of(l);
    p.out = nullptr;
    p.add_to = a.add_to, p.add_scale = a.scale;
    many_rows(stream, p, !for_tensor_cores(l.w));
    return;
  }
  MatvecParams p;
  p.meet = meet_;
  p.cols = l.w.cols;
  p.in.x = l.x, p.in.stride = l.w.cols;
  p.product[0] = product_of({l.w, l.bias, nullptr});
  p.add_to = a.add_to, p.add_scale = a.scale;
  few_rows(stream, p, l.rows);
}

void Fast::gated_linear(CudaStream& stream, const GatedLinearArgs& a) const {
  if (many(Way::kByShape, a.rows, a.gate)) {
    linear(stream, {a.gate, nullptr, a.rows, a.x, a.out});
    linear(stream, {a.up, nullptr, a.rows, a.x, a.up_out});
    cuda::activation(stream, {a.activation, a.rows * a.gate.rows, a.out, a.up_out, a.out});
    return;
  }
  GatedParams p;
  p.meet = meet_;
  p.cols = a.gate.cols, p.n = a.gate.rows;
  p.gate_format = fmt_of(a.gate), p.up_format = fmt_of(a.up);
  p.gate = weights_of(a.gate, nullptr), p.up = weights_of(a.up, nullptr);
  p.activation = activation_of(a.activation);
  for (int64_t first = 0; first < a.rows; first += kMatvecRows) {
    p.rows = int(std::min<int64_t>(kMatvecRows, a.rows - first));
    p.in.x = a.x + first * p.cols, p.in.stride = p.cols;
    p.out = a.out + first * p.n;
    check(gated_matvec(p, stream.handle()), "gated linear");
  }
}

// Routers' inputs are not rounded: a choice that falls otherwise is a larger difference than any sum.
void Fast::norm_route(CudaStream& stream, const NormRouteArgs& a) const {
  RouterArgs choice = a.route;
  choice.logits = a.logits;
  RouteLinearParams p;
  const RouteParams whole = route_params(choice);
  p.in = input_of(a.norm), p.cols = a.norm.width;
  p.format = fmt_of(a.router), p.router = weights_of(a.router, a.bias);
  p.logits = a.logits, p.route = whole;
  if (a.norm.rows > kOneBlockRoutes && route_rows_takes(p)) {
    p.arrived = stream.counters(uint64_t(route_rows_counters(a.norm.rows)));
    check(route_rows(p, stream.handle()), "route several rows");
    return;
  }
  if (a.norm.rows > kOneBlockRoutes) {
    cuda::norm(stream, a.norm);
    many_rows(stream, gemm_of({a.router, a.bias, a.norm.rows, a.norm.out, a.logits}), true);
    cuda::route(stream, choice);
    return;
  }
  p.arrived = stream.counters(1);
  for (int64_t first = 0; first < a.norm.rows; first += kMatvecRows) {
    p.in = rows_from(input_of(a.norm), first, a.norm.width);
    p.route = whole;
    p.route.rows = std::min<int64_t>(kMatvecRows, a.norm.rows - first);
    p.logits = a.logits + first * whole.experts;
    p.route.logits = p.logits;
    p.route.ids += first * whole.top_k, p.route.weights += first * whole.top_k;
    check(route_linear(p, stream.handle()), "route");
  }
}

void Fast::attend(CudaStream& stream, const AttendArgs& a) const {
  const AttentionArgs& t = a.attention;
  if (t.batch.rows <= 0) return;
  AttendParams p;
  p.kv = kv_of(t.kv, t.batch);
  p.heads = t.heads, p.window = t.window, p.scale = t.scale, p.sinks = t.sinks;
  p.q = a.q, p.k = a.k, p.v = a.v;
  p.q_norm = a.q_norm, p.k_norm = a.k_norm, p.norm_whole = a.norm_whole, p.norm_eps = a.norm_eps;
  p.clip = a.clip;
  p.rotary = a.rotary, p.interleaved = a.interleaved, p.cos = a.cos, p.sin = a.sin;
  p.out = t.out;
  p.reach = reach_of(t);
  p.one_row_each = t.batch.one_row_each || t.batch.rows == 1;
  p.settled = t.batch.settled;
  p.scratch = scratch_bytes(stream, attend_scratch(p));
  p.arrived = stream.counters(uint64_t(attend_counters(p)));
  check(cuda::attend(p, stream.handle()), "attend");
}

void Fast::routed_experts(CudaStream& stream, const RoutedExpertsArgs& a) const { routed(stream, a, Way::kByShape); }

void Fast::routed(CudaStream& stream, const RoutedExpertsArgs& a, Way way) const {
  if (a.rows <= 0) return;
  RoutedParams p;
  p.meet = meet_;
  p.rows = a.rows, p.hidden = a.hidden, p.ffn = a.ffn, p.experts = a.experts, p.top_k = a.top_k;
  p.gate_format = fmt_of(a.kind->gate), p.up_format = fmt_of(a.kind->up), p.down_format = fmt_of(a.kind->down);
  p.table = reinterpret_cast<const ExpertEntry*>(a.table);
  p.activation = activation_of(a.activation);
  p.ids = a.ids, p.weights = a.weights, p.x = a.x, p.out = a.out;
  p.add_to = a.add_to, p.add_scale = a.add_scale;
  const bool tensor_cores =
      for_tensor_cores(a.kind->gate) && for_tensor_cores(a.kind->up) && for_tensor_cores(a.kind->down);
  const bool many_of_them =
      way == Way::kByShape ? a.rows >= tuning_.rows(shape_of(a), kRoutedGemmRows) : way == Way::kManyRows;
  if (many_of_them && tensor_cores) {
    p.scratch = scratch_bytes(stream, routed_gemm_scratch(p));
    RankSums left;
    check(routed_gemm(p, stream.handle(), &left), "experts of many rows");
    if (left.down) stream.leave(left);
    return;
  }
  // Without tensor cores, many rows go in portions.
  const RoutedParams whole = p;
  for (int64_t first = 0; first < a.rows; first += kRoutedGemmRows - 1) {
    p.rows = std::min<int64_t>(kRoutedGemmRows - 1, a.rows - first);
    p.ids = whole.ids + first * a.top_k, p.weights = whole.weights + first * a.top_k;
    p.x = whole.x + first * a.hidden;
    p.out = whole.out + first * a.hidden;
    if (whole.add_to) p.add_to = whole.add_to + first * a.hidden;
    p.scratch = scratch_bytes(stream, routed_matvec_scratch(p));
    check(routed_matvec(p, stream.handle()), "experts of few rows");
  }
}

int Fast::tune(CudaStream& stream, std::span<const LinearArgs> products,
               std::span<const RoutedExpertsArgs> routed_kinds, const std::filesystem::path& file) {
  static const std::vector<int64_t> kDense = {2, 3, 5, 9, 16, 24, 32, 48, 64}, kRouted = {2, 3, 5, 9, 16, 32, 64, 128};
  if (!file.empty()) tuning_.read(file);
  int measured = 0;
  const auto within = [](const std::vector<int64_t>& candidates, int64_t rows) {
    std::vector<int64_t> out;
    std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(out), [&](int64_t c) { return c <= rows; });
    return out;
  };
  for (const LinearArgs& a : products) {
    const std::vector<int64_t> candidates = within(kDense, a.rows);
    if (tuning_.knows(shape_of(a.w)) || candidates.empty()) continue;
    const auto seconds = [&](Way way) {
      return [&, way](int64_t rows) {
        LinearArgs some = a;
        some.rows = rows;
        return stream.seconds_of([&] { linear(stream, some, way); });
      };
    };
    tuning_.learn(shape_of(a.w), crossover(candidates, seconds(Way::kFewRows), seconds(Way::kManyRows)));
    ++measured;
  }
  for (const RoutedExpertsArgs& a : routed_kinds) {
    const std::vector<int64_t> candidates = within(kRouted, a.rows);
    if (tuning_.knows(shape_of(a)) || candidates.empty()) continue;
    const auto seconds = [&](Way way) {
      return [&, way](int64_t rows) {
        RoutedExpertsArgs some = a;
        some.rows = rows;
        return stream.seconds_of([&] { routed(stream, some, way); });
      };
    };
    tuning_.learn(shape_of(a), crossover(candidates, seconds(Way::kFewRows), seconds(Way::kManyRows)));
    ++measured;
  }
  if (measured > 0 && !file.empty()) (void)tuning_.write(file);  // unwritable: measured again next time
  return measured;
}

Buffer expert_table(Backend& backend, std::span<const ExpertView> experts, CudaStream& stream) {
  std::vector<ExpertEntry> entries;
  for (const ExpertView& e : experts)
    entries.push_back({weights_of(e.gate, e.gate_bias), weights_of(e.up, e.up_bias), weights_of(e.down, e.down_bias)});
  const uint64_t bytes = entries.size() * sizeof(ExpertEntry);
  Buffer table = backend.allocate(bytes, {Region::kStatic, "expert tables"});
  stream.copy_to_device(table.data(), entries.data(), bytes);
  stream.synchronize();
  return table;
}

}  // namespace ef::cuda
