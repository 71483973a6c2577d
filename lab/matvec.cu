// Products with few rows against the float32 kernels and sums of doubles, then their times at the shapes of
// Qwen3-30B-A3B: each op over copies of its weights that the L2 cache does not hold, then all products of a token.
//   nvcc -O3 -std=c++17 -arch=sm_90 --extended-lambda -fmad=false -I. -o matvec_lab lab/matvec.cu
//     expertflow/backend/cuda/device/*.cu
//   matvec_lab [--check | --ops | --token]   small shapes and no times with --check; else one of the two parts, or both
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "expertflow/backend/cuda/device/fast.h"
#include "lab/device.cuh"
#include "lab/weights.cuh"

namespace ef::cuda {
namespace {

constexpr double kBytesPerSecond = 4611e9;  // a large copy on an H200, bytes read and written
int g_bad = 0;

// Copies of a matrix.
struct Copies {
  Copies(Fmt format, int64_t rows, int64_t cols, int copies, uint32_t seed)
      : format(format), rows(rows), cols(cols), bytes_each(rows * bytes_of(format, cols)), count(copies) {
    stride = (bytes_each + 255) / 256 * 256;
    data = std::make_unique<Device<uint8_t>>(stride * copies);
    constexpr int kDifferent = 4;
    for (int i = 0; i < std::min(copies, kDifferent); ++i)
      check(fill_weights(format, data->get() + i * stride, bytes_each, seed * 131 + uint32_t(i)), "fill");
    for (int i = kDifferent; i < copies; i *= 2)
      check(cudaMemcpy(data->get() + i * stride, data->get(), size_t(std::min(i, copies - i) * stride),
                       cudaMemcpyDeviceToDevice),
            "copy");
    if (format != Fmt::kF8E4M3) return;
    const int64_t factors = (rows + 127) / 128 * ((cols + 127) / 128);
    scales = std::make_unique<Device<float>>(factors);
    check(fill_scales(scales->get(), factors), "fill");
  }
  Weights of(int copy) const {
    return {data->get() + (copy % count) * stride, scales ? scales->get() : nullptr, nullptr};
  }
  Fmt format;
  int64_t rows, cols, bytes_each, stride = 0;
  int count;
  std::unique_ptr<Device<uint8_t>> data;
  std::unique_ptr<Device<float>> scales;
};

// Row r of a matrix as the kernels' own conversion gives it.
std::vector<float> row_of(const Copies& m, int64_t r) {
  const Device<int32_t> id(std::vector<int32_t>{int32_t(r)});
  const Device<float> out(m.cols);
  check(embed(m.format, m.of(0), m.cols, id.get(), 1, 1.f, out.get(), nullptr), "embed");
  return out.host();
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double off = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    off += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i])), all += double(b[i]) * double(b[i]);
  }
  return std::sqrt(off / all);
}

class Stream {
 public:
  Stream() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    check(cudaEventCreate(&begin_), "event"), check(cudaEventCreate(&end_), "event");
  }
  // Microseconds of a call: `calls` of them recorded as one graph, the median of several replays.
  double microseconds(int calls, const std::function<cudaError_t(int, cudaStream_t)>& run) {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    check(run(0, stream_), "run"), check(cudaStreamSynchronize(stream_), "run");
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; ++i) check(run(i, stream_), "run");
    check(cudaStreamEndCapture(stream_, &graph), "capture");
    check(cudaGraphInstantiate(&replay, graph, 0), "graph");
    std::vector<double> times;
    for (int i = 0; i < 9; ++i) {
      check(cudaEventRecord(begin_, stream_), "event"), check(cudaGraphLaunch(replay, stream_), "graph");
      check(cudaEventRecord(end_, stream_), "event"), check(cudaStreamSynchronize(stream_), "graph");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin_, end_), "event");
      if (i > 1) times.push_back(double(ms) * 1e3 / calls);
    }
    cudaGraphExecDestroy(replay), cudaGraphDestroy(graph);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

void print_time(const char* what, double us, double bytes) {
  const double rate = bytes / us * 1e6;
  std::printf("  %s %8.2f us %6.0f GB/s %5.1f %%", what, us, rate / 1e9, 100 * rate / kBytesPerSecond);
}
void print_error(double error, double bound) {
  std::printf("  error %.1e", error);
  if (error <= bound) return;
  std::printf(" TOO LARGE");
  ++g_bad;
}
// Activations of 8 bits are a relative error of some 0.7 %; float32 sums are none to speak of.
double bound_of(Meet meet, Fmt format) { return meet == Meet::kQ8 && format > Fmt::kF8E4M3 ? 1.5e-2 : 1e-5; }

constexpr int64_t kPastCache = 240 << 20;
int copies_for(int64_t bytes, bool timed) { return timed ? int(std::clamp<int64_t>(kPastCache / bytes, 2, 400)) : 1; }

// Up to three matrices of one input.
void product_case(const char* name, std::vector<std::pair<Fmt, int64_t>> matrices, int64_t cols, int rows, Meet meet,
                  bool timed) {
  std::vector<std::unique_ptr<Copies>> w;
  std::vector<std::unique_ptr<Device<float>>> out, plain;
  int64_t bytes = 0;
  for (const auto& [format, n] : matrices) bytes += n * bytes_of(format, cols);
  const int copies = copies_for(bytes, timed);
  const Device<float> x(normal(rows * cols, 1)), normed(rows * cols), weight(normal(cols, 2));
  MatvecParams p;
  p.meet = meet, p.rows = rows, p.cols = cols, p.count = int(matrices.size());
  p.in.x = x.get(), p.in.stride = cols, p.in.norm_weight = weight.get(), p.in.eps = 1e-6f, p.in.normed = normed.get();
  double worst = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    w.push_back(std::make_unique<Copies>(matrices[i].first, matrices[i].second, cols, copies, uint32_t(i + 1)));
    for (auto* to : {&out, &plain}) to->push_back(std::make_unique<Device<float>>(rows * matrices[i].second));
  }
  const auto fast = [&](int copy, cudaStream_t stream) {
    for (size_t i = 0; i < w.size(); ++i) p.product[i] = {w[i]->format, w[i]->of(copy), w[i]->rows, out[i]->get()};
    return matvec(p, stream);
  };
  const auto naive = [&](int copy, cudaStream_t stream) {
    cudaError_t error = norm({false, rows, cols, 1e-6f, weight.get(), nullptr, x.get(), normed.get()}, stream);
    for (size_t i = 0; i < w.size() && error == cudaSuccess; ++i) {
      MatmulParams m;
      m.format = w[i]->format, m.n = w[i]->rows, m.cols = cols, m.single.w[0] = w[i]->of(copy);
      m.rows = rows, m.x = normed.get(), m.x_stride = cols, m.out = plain[i]->get(), m.out_stride = w[i]->rows;
      error = matmul(m, stream);
    }
    return error;
  };
  check(fast(0, nullptr), "matvec"), check(cudaDeviceSynchronize(), "matvec");
  const std::vector<float> input = normed.host();
  check(naive(0, nullptr), "matmul"), check(cudaDeviceSynchronize(), "matmul");
  double bound = 0, exact = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    const std::vector<float> found = out[i]->host();
    worst = std::max(worst, difference(found, plain[i]->host()));
    bound = std::max(bound, bound_of(meet, w[i]->format));
    std::vector<float> some, sums;
    for (int64_t n = 0; n < w[i]->rows; n += w[i]->rows / 8 + 1) {
      const std::vector<float> numbers = row_of(*w[i], n);
      for (int r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t c = 0; c < cols; ++c) sum += double(numbers[size_t(c)]) * double(input[size_t(r * cols + c)]);
        sums.push_back(float(sum)), some.push_back(found[size_t(r * w[i]->rows + n)]);
      }
    }
    exact = std::max(exact, difference(some, sums));
  }
  std::printf("%-8s %-5s%s rows %d", name, name_of(matrices[0].first), meet == Meet::kQ8 ? "    " : " f32", rows);
  print_error(worst, bound), print_error(exact, 2 * bound);
  if (timed) {
    Stream stream;
    print_time("naive", stream.microseconds(copies, naive), double(bytes));
    print_time("fast", stream.microseconds(copies, fast), double(bytes));
  }
  std::printf("\n");
}

void gated_case(Fmt format, int64_t n, int64_t cols, int rows, bool timed) {
  const int copies = copies_for(2 * n * bytes_of(format, cols), timed);
  const Copies gate(format, n, cols, copies, 3), up(format, n, cols, copies, 4);
  const Device<float> x(normal(rows * cols, 1)), out(rows * n), both(rows * 2 * n), plain(rows * n);
  const auto fast = [&](int copy, cudaStream_t stream) {
    GatedParams p;
    p.rows = rows, p.cols = cols, p.n = n, p.in.x = x.get(), p.in.stride = cols;
    p.gate_format = p.up_format = format, p.gate = gate.of(copy), p.up = up.of(copy), p.out = out.get();
    return gated_matvec(p, stream);
  };
  const auto naive = [&](int copy, cudaStream_t stream) {
    MatmulParams m;
    m.format = format, m.n = n, m.cols = cols, m.matrices = 2, m.single.w[0] = gate.of(copy);
    m.single.w[1] = up.of(copy);
    m.rows = rows, m.x = x.get(), m.x_stride = cols, m.out = both.get(), m.out_stride = 2 * n;
    const cudaError_t error = matmul(m, stream);
    ActivationParams a;
    a.rows = rows, a.width = n, a.in_stride = 2 * n, a.out_stride = n;
    a.gate = both.get(), a.up = both.get() + n, a.out = plain.get();
    return error == cudaSuccess ? activation(a, stream) : error;
  };
  check(fast(0, nullptr), "gated_matvec"), check(naive(0, nullptr), "matmul");
  check(cudaDeviceSynchronize(), "gated_matvec");
  std::printf("%-8s %-5s     rows %d", "gated", name_of(format), rows);
  print_error(difference(out.host(), plain.host()), 2 * bound_of(Meet::kQ8, format));
  if (timed) {
    Stream stream;
    const double bytes = 2. * double(gate.bytes_each);
    print_time("naive", stream.microseconds(copies, naive), bytes);
    print_time("fast", stream.microseconds(copies, fast), bytes);
  }
  std::printf("\n");
}

RouteParams route_of(int experts, int top_k, int rows, const float* logits, int32_t* ids, float* weights) {
  RouteParams r;
  r.experts = experts, r.top_k = top_k, r.rows = rows, r.renormalise = true;
  r.logits = logits, r.ids = ids, r.weights = weights;
  return r;
}

void route_case(Fmt format, int experts, int64_t cols, int rows, bool timed) {
  constexpr int kTopK = 8;
  const int copies = copies_for(experts * bytes_of(format, cols), timed);
  const Copies router(format, experts, cols, copies, 5);
  const Device<float> x(normal(rows * cols, 1)), weight(normal(cols, 2)), normed(rows * cols);
  const Device<float> logits(rows * experts), plain(rows * experts), weights(rows * kTopK), other(rows * kTopK);
  const Device<int32_t> ids(rows * kTopK), other_ids(rows * kTopK);
  const Device<unsigned> arrived(std::vector<unsigned>{0});
  const auto fast = [&](int copy, cudaStream_t stream) {
    RouteLinearParams p;
    p.in.x = x.get(), p.in.stride = cols, p.in.norm_weight = weight.get(), p.in.eps = 1e-6f;
    p.in.normed = normed.get();
    p.cols = cols, p.format = format, p.router = router.of(copy), p.logits = logits.get();
    p.route = route_of(experts, kTopK, rows, logits.get(), ids.get(), weights.get()), p.arrived = arrived.get();
    return rows > kMatvecRows ? route_rows(p, stream) : route_linear(p, stream);
  };
  const auto naive = [&](int copy, cudaStream_t stream) {
    cudaError_t error = norm({false, rows, cols, 1e-6f, weight.get(), nullptr, x.get(), normed.get()}, stream);
    MatmulParams m;
    m.format = format, m.n = experts, m.cols = cols, m.single.w[0] = router.of(copy);
    m.rows = rows, m.x = normed.get(), m.x_stride = cols, m.out = plain.get(), m.out_stride = experts;
    if (error == cudaSuccess) error = matmul(m, stream);
    if (error != cudaSuccess) return error;
    return route(route_of(experts, kTopK, rows, plain.get(), other_ids.get(), other.get()), stream);
  };
  check(fast(0, nullptr), "route_linear"), check(naive(0, nullptr), "route"), check(cudaDeviceSynchronize(), "route");
  std::printf("%-8s %-5s     rows %d", "router", name_of(format), rows);
  print_error(difference(logits.host(), plain.host()), 1e-5);
  std::printf("  choices %s", ids.host() == other_ids.host() ? "equal" : "DIFFER");
  if (timed) {
    Stream stream;
    print_time("naive", stream.microseconds(copies, naive), double(router.bytes_each));
    print_time("fast", stream.microseconds(copies, fast), double(router.bytes_each));
  }
  std::printf("\n");
}

// The experts of several layers.
struct Experts {
  Experts(Fmt up_format, Fmt down_format, int64_t hidden, int64_t ffn, int experts, int layers)
      : gate(up_format, ffn, hidden, experts * layers, 6),
        up(up_format, ffn, hidden, experts * layers, 7),
        down(down_format, hidden, ffn, experts * layers, 8),
        layers(layers) {
    std::vector<ExpertEntry> all;
    for (int i = 0; i < experts * layers; ++i) all.push_back({gate.of(i), up.of(i), down.of(i)});
    table = std::make_unique<Device<ExpertEntry>>(all);
    p.hidden = hidden, p.ffn = ffn, p.experts = experts;
    p.gate_format = p.up_format = up_format, p.down_format = down_format;
  }
  RoutedParams of(int layer) const {
    RoutedParams r = p;
    r.table = table->get() + layer % layers * p.experts;
    return r;
  }
  int64_t expert_bytes() const { return 2 * gate.bytes_each + down.bytes_each; }
  Copies gate, up, down;
  int layers;
  std::unique_ptr<Device<ExpertEntry>> table;
  RoutedParams p;
};

void routed_case(Fmt up_format, Fmt down_format, int64_t hidden, int64_t ffn, int experts, int top_k, int rows,
                 bool timed) {
  const int layers = timed ? 6 : 1;
  const Experts e(up_format, down_format, hidden, ffn, experts, layers);
  // Other choices at every call.
  const int calls = timed ? 24 : 1, assignments = rows * top_k;
  std::mt19937 g(9);
  std::vector<int32_t> chosen;
  int64_t distinct = 0;
  for (int call = 0; call < calls; ++call) {
    std::set<int32_t> used;
    for (int r = 0; r < rows; ++r) {
      std::vector<int32_t> all(static_cast<size_t>(experts));
      for (int i = 0; i < experts; ++i) all[size_t(i)] = i;
      std::shuffle(all.begin(), all.end(), g);
      chosen.insert(chosen.end(), all.begin(), all.begin() + top_k), used.insert(all.begin(), all.begin() + top_k);
    }
    distinct += int64_t(used.size());
  }
  std::vector<float> even(static_cast<size_t>(assignments), 1.f / float(top_k));
  const Device<int32_t> ids(chosen);
  const Device<float> weights(even), x(normal(rows * hidden, 1)), out(rows * hidden), plain(rows * hidden);
  RoutedParams shape = e.of(0);
  shape.rows = rows, shape.top_k = top_k;
  const Device<uint8_t> scratch(int64_t(routed_matvec_scratch(shape)));
  const auto fast = [&](int call, cudaStream_t stream) {
    RoutedParams p = e.of(call);
    p.rows = rows, p.top_k = top_k, p.ids = ids.get() + call * assignments, p.weights = weights.get();
    p.x = x.get(), p.out = out.get(), p.scratch = scratch.get();
    return routed_matvec(p, stream);
  };
  // The reference: a tile for every assignment.
  std::vector<Group> up_groups, down_groups;
  std::vector<Tile> tiles;
  std::vector<int32_t> order;
  for (int call = 0; call < calls; ++call)
    for (int a = 0; a < assignments; ++a) {
      const int i = call % layers * experts + chosen[size_t(call * assignments + a)];
      up_groups.push_back({{e.gate.of(i), e.up.of(i)}}), down_groups.push_back({{e.down.of(i), {}}});
      if (call == 0) tiles.push_back({a, a, 1}), order.push_back(a);
    }
  const Device<Group> up_table(up_groups), down_table(down_groups);
  const Device<Tile> device_tiles(tiles);
  const Device<int32_t> device_order(order);
  const Device<float> both(assignments * 2 * ffn), each(assignments * hidden);
  const auto naive = [&](int call, cudaStream_t stream) {
    MatmulParams m;
    m.format = up_format, m.n = ffn, m.cols = hidden, m.matrices = 2, m.groups = up_table.get() + call * assignments;
    m.tiles = device_tiles.get(), m.tile_count = assignments, m.most_rows = 1;
    m.x_row = device_order.get(), m.x_divisor = top_k, m.x = x.get(), m.x_stride = hidden;
    m.out = both.get(), m.out_stride = 2 * ffn;
    cudaError_t error = matmul(m, stream);
    ActivationParams a;
    a.rows = assignments, a.width = ffn, a.in_stride = a.out_stride = 2 * ffn;
    a.gate = both.get(), a.up = both.get() + ffn, a.out = both.get();
    if (error == cudaSuccess) error = activation(a, stream);
    m.format = down_format, m.n = hidden, m.cols = ffn, m.matrices = 1;
    m.groups = down_table.get() + call * assignments;
    m.x_row = nullptr, m.x_divisor = 1, m.x = both.get(), m.x_stride = 2 * ffn, m.out = each.get();
    m.out_stride = hidden;
    if (error == cudaSuccess) error = matmul(m, stream);
    return error == cudaSuccess ? combine(each.get(), weights.get(), rows, hidden, top_k, plain.get(), stream) : error;
  };
  check(fast(0, nullptr), "routed_matvec"), check(naive(0, nullptr), "matmul"),
      check(cudaDeviceSynchronize(), "routed");
  std::printf("%-8s %-5s%-5srows %d", "experts", name_of(up_format), name_of(down_format), rows);
  print_error(difference(out.host(), plain.host()), 3 * bound_of(Meet::kQ8, up_format));
  if (timed) {
    Stream stream;
    const double bytes = double(distinct) / calls * double(e.expert_bytes());
    print_time("naive", stream.microseconds(calls, naive), bytes);
    print_time("fast", stream.microseconds(calls, fast), bytes);
  }
  std::printf("\n");
}

// All products of a token, attention and the embedding left out: the layers' in their order, then the head.
void token_case(const char* name, Fmt most, Fmt some, int layers, int rows) {
  constexpr int64_t kHidden = 2048, kQ = 4096, kKv = 512, kFfn = 768, kVocabulary = 151936;
  constexpr int kExperts = 128, kTopK = 8;
  const Copies q(most, kQ, kHidden, layers, 11), k(most, kKv, kHidden, layers, 12), v(some, kKv, kHidden, layers, 13),
      o(most, kHidden, kQ, layers, 14), router(Fmt::kF32, kExperts, kHidden, layers, 15),
      head(some, kVocabulary, kHidden, 1, 16);
  const Experts experts(most, some, kHidden, kFfn, kExperts, layers);
  const Device<float> hidden(normal(rows * kHidden, 1)), weight(normal(kHidden, 2)), normed(rows * kHidden),
      out_q(rows * kQ), out_k(rows * kKv), out_v(rows * kKv), mixed_rows(normal(rows * kQ, 3)), logits(rows * kExperts),
      weights(rows * kTopK), out(rows * kVocabulary);
  const Device<int32_t> ids(rows * kTopK);
  const Device<unsigned> arrived(std::vector<unsigned>{0});
  RoutedParams shape = experts.of(0);
  shape.rows = rows, shape.top_k = kTopK;
  const Device<uint8_t> scratch(int64_t(routed_matvec_scratch(shape)));
  Input in;
  in.x = hidden.get(), in.stride = kHidden, in.norm_weight = weight.get(), in.eps = 1e-6f;
  const auto part = [&](int which, int layer, cudaStream_t stream) {
    MatvecParams p;
    p.rows = rows, p.cols = kHidden, p.in = in;
    if (which == 0) {
      p.count = 3;
      p.product[0] = {q.format, q.of(layer), kQ, out_q.get()}, p.product[1] = {k.format, k.of(layer), kKv, out_k.get()};
      p.product[2] = {v.format, v.of(layer), kKv, out_v.get()};
      return matvec(p, stream);
    }
    if (which == 1) {
      p.cols = kQ, p.in = {}, p.in.x = mixed_rows.get(), p.in.stride = kQ;
      p.product[0] = {o.format, o.of(layer), kHidden, nullptr}, p.add_to = hidden.get(), p.add_scale = 1e-3f;
      return matvec(p, stream);
    }
    if (which == 2) {
      RouteLinearParams r;
      r.in = in, r.in.normed = normed.get(), r.cols = kHidden;
      r.format = router.format, r.router = router.of(layer), r.logits = logits.get(), r.arrived = arrived.get();
      r.route = route_of(kExperts, kTopK, rows, logits.get(), ids.get(), weights.get());
      return route_linear(r, stream);
    }
    if (which == 3) {
      RoutedParams r = experts.of(layer);
      r.rows = rows, r.top_k = kTopK, r.ids = ids.get(), r.weights = weights.get(), r.x = normed.get();
      r.add_to = hidden.get(), r.add_scale = 1e-3f, r.scratch = scratch.get();
      return routed_matvec(r, stream);
    }
    p.product[0] = {head.format, head.of(0), kVocabulary, out.get()};
    return matvec(p, stream);
  };
  Stream stream;
  const double of_layer = double(q.bytes_each + k.bytes_each + v.bytes_each + o.bytes_each + router.bytes_each) +
                          double(kTopK * experts.expert_bytes());
  const double bytes = layers * of_layer + double(head.bytes_each);
  const auto token = [&](int, cudaStream_t s) {
    for (int layer = 0; layer < layers; ++layer)
      for (int which = 0; which < 4; ++which)
        if (const cudaError_t error = part(which, layer, s); error != cudaSuccess) return error;
    return part(4, 0, s);
  };
  std::printf("token    %-12s rows %d, %.2f GB a row:", name, rows, bytes / 1e9);
  print_time("all", stream.microseconds(1, token), bytes);
  std::printf("\n");
  static const char* const kParts[] = {"q, k, v", "o", "router", "experts"};
  for (int which = 0; which < 4; ++which) {
    const double us = stream.microseconds(layers, [&](int layer, cudaStream_t s) { return part(which, layer, s); });
    std::printf("         %-8s alone %7.2f us a layer\n", kParts[which], us);
  }
}

void run_ops(bool timed) {
  const int64_t scale = timed ? 1 : 8;  // tiny shapes where nothing is timed
  const int64_t hidden = timed ? 2048 : 512, ffn = timed ? 768 : 256, vocabulary = timed ? 151936 : 300;
  const int experts = timed ? 128 : 16;
  const std::vector<Fmt> formats = {Fmt::kQ4K,   Fmt::kQ6K, Fmt::kQ5K,  Fmt::kQ8_0, Fmt::kQ4_0,  Fmt::kMXFP4,
                                    Fmt::kIQ4XS, Fmt::kQ3K, Fmt::kBF16, Fmt::kF16,  Fmt::kF8E4M3};
  if (timed) product_case("floor", {{Fmt::kQ4K, 132}}, 256, 1, Meet::kQ8, timed);
  for (const Fmt format : formats) {
    for (const int rows : {1, 4, 8}) {
      if (rows > 1 && timed && format != Fmt::kQ4K && format != Fmt::kQ6K && format != Fmt::kBF16) continue;
      product_case("q, k, v", {{format, 4096 / scale}, {format, 512 / scale}, {format, 512 / scale}}, hidden, rows,
                   Meet::kQ8, timed);
      product_case("o", {{format, hidden}}, 2 * hidden, rows, Meet::kQ8, timed);
    }
    product_case("head", {{format, vocabulary}}, hidden, 1, Meet::kQ8, timed);
    gated_case(format, 6144 / scale, hidden, 1, timed);
  }
  product_case("q, k, v", {{Fmt::kQ4K, 4096 / scale}, {Fmt::kQ4K, 512 / scale}, {Fmt::kQ6K, 512 / scale}}, hidden, 1,
               Meet::kQ8, timed);
  product_case("q, k, v", {{Fmt::kQ4K, 4096 / scale}}, hidden, 1, Meet::kF32, timed);
  for (const Fmt format : {Fmt::kF32, Fmt::kBF16})
    for (const int rows : {1, 8, 16}) route_case(format, experts, hidden, rows, timed);
  for (const int rows : {1, 2, 4, 8, 16, 64}) {
    routed_case(Fmt::kQ4K, Fmt::kQ6K, hidden, ffn, experts, 8, rows, timed);
    routed_case(Fmt::kBF16, Fmt::kBF16, hidden, ffn, experts, 8, rows, timed);
  }
  for (const Fmt format : {Fmt::kQ4K, Fmt::kQ8_0, Fmt::kMXFP4})
    routed_case(format, format, hidden, ffn, experts, 8, 1, timed);
}

}  // namespace
}  // namespace ef::cuda

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode != "--token") ef::cuda::run_ops(mode != "--check");
  if (mode == "" || mode == "--token") {
    ef::cuda::token_case("Q4_K, Q6_K", ef::cuda::Fmt::kQ4K, ef::cuda::Fmt::kQ6K, 48, 1);
    ef::cuda::token_case("BF16", ef::cuda::Fmt::kBF16, ef::cuda::Fmt::kBF16, 48, 1);
  }
  if (ef::cuda::g_bad > 0) std::printf("%d results are off\n", ef::cuda::g_bad);
  return ef::cuda::g_bad > 0;
}
