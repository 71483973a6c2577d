// All layers of a decoding step by one kernel (layers()) against the float32 kernels one by one, then its time a layer
// at the shape of Qwen3-30B-A3B beside what the memory needs.
//   nvcc -O3 -std=c++17 -arch=sm_90 --extended-lambda -fmad=false -I. -o layers_lab lab/layers.cu
//     expertflow/backend/cuda/device/*.cu
//   layers_lab [--check]   small shapes and no times with --check
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "expertflow/backend/cuda/device/layers.h"
#include "lab/device.cuh"
#include "lab/weights.cuh"

namespace ef::cuda {
namespace {

constexpr double kBytesPerSecond = 4500e9;  // reads of an H200, as the engine measures them
int g_bad = 0;

struct Case {
  const char* name;
  Fmt format, router;
  int hidden, heads, kv_heads, dim, ffn, experts, top_k, layers, position;
  int kv_type = 1, window = 0;
  bool normed = true, sinks = false;
};

struct Layer {
  std::vector<std::unique_ptr<Device<uint8_t>>> matrices;
  std::vector<std::unique_ptr<Device<float>>> vectors;
  std::unique_ptr<Device<ExpertEntry>> table;
  std::vector<ExpertEntry> experts;
};

// A model of random weights, and its row.
class Model {
 public:
  explicit Model(const Case& c) : c_(c), cos_(normal(c.dim / 2, 5)), sin_(normal(c.dim / 2, 6)), x_(c.hidden) {
    const int blocks = c.position / kBlock + 1;
    std::vector<int32_t> table(size_t(blocks), 0);
    for (int i = 0; i < blocks; ++i) table[size_t(i)] = (i * 7 + 3) % blocks;
    if (blocks % 7 == 0)
      for (int i = 0; i < blocks; ++i) table[size_t(i)] = blocks - 1 - i;
    blocks_ = std::make_unique<Device<int32_t>>(table);
    at_ = std::make_unique<Device<int32_t>>(std::vector<int32_t>{c.position, 0});
    p_.format = c.format, p_.router_format = c.router;
    p_.hidden = c.hidden, p_.heads = c.heads, p_.kv_heads = c.kv_heads, p_.head_dim = c.dim, p_.ffn = c.ffn;
    p_.attn_eps = p_.ffn_eps = p_.head_eps = 1e-6f;
    p_.kv_type = c.kv_type, p_.block_tokens = kBlock;
    p_.position = at_->get(), p_.sequence = at_->get() + 1;
    p_.scale = 1.f / std::sqrt(float(c.dim));
    p_.rotary = c.dim, p_.cos = cos_.get(), p_.sin = sin_.get();
    p_.route.rows = 1, p_.route.experts = c.experts, p_.route.top_k = c.top_k, p_.route.renormalise = true;
    p_.x = x_.get(), p_.count = c.layers;
    for (int i = 0; i < c.layers; ++i) add_layer(i, blocks);
    if (!layers_takes(p_)) return;
    scratch_ = std::make_unique<Device<float>>(int64_t(layers_scratch(p_) / sizeof(float)));
    arrived_ = std::make_unique<Device<unsigned>>(std::vector<unsigned>(kLayersCounters, 0u));
    p_.scratch = scratch_->get(), p_.arrived = arrived_->get();
  }

  bool taken() const { return scratch_ != nullptr; }
  std::vector<float> fast() {
    x_.set(normal(c_.hidden, 9));
    check(layers(p_, nullptr), "layers"), check(cudaDeviceSynchronize(), "layers");
    return x_.host();
  }
  std::vector<float> plain() {
    x_.set(normal(c_.hidden, 9));
    for (int i = 0; i < c_.layers; ++i) plain_layer(p_.layer[i], layers_[size_t(i)]);
    return x_.host();
  }
  double microseconds() {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check(cudaEventCreate(&begin), "event"), check(cudaEventCreate(&end), "event");
    std::vector<double> times;
    for (int i = 0; i < 30; ++i) {
      x_.set(normal(c_.hidden, uint32_t(20 + i)));
      check(cudaEventRecord(begin, stream), "event"), check(layers(p_, stream), "layers");
      check(cudaEventRecord(end, stream), "event"), check(cudaStreamSynchronize(stream), "layers");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end), "event");
      if (i > 4) times.push_back(double(ms) * 1e3 / c_.layers);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
  double bytes() const {
    const double q = double(c_.heads) * c_.dim, kv = double(c_.kv_heads) * c_.dim;
    return 2. * c_.hidden * (2 * q + 2 * kv + 3. * c_.top_k * c_.ffn + c_.experts) + 4. * kv * c_.position;
  }

 private:
  static constexpr int kBlock = 32;

  const uint8_t* matrix(Layer& l, Fmt format, int64_t rows, int64_t cols) {
    const int64_t bytes = rows * bytes_of(format, cols);
    l.matrices.push_back(std::make_unique<Device<uint8_t>>(bytes));
    check(fill_weights(format, l.matrices.back()->get(), bytes, ++seed_), "fill");
    return l.matrices.back()->get();
  }
  const float* vector(Layer& l, int n, float mean) {
    l.vectors.push_back(std::make_unique<Device<float>>(normal(n, ++seed_, mean, 0.3f)));
    return l.vectors.back()->get();
  }
  void add_layer(int i, int blocks) {
    layers_.emplace_back();
    Layer& l = layers_.back();
    LayerOf& to = p_.layer[i];
    const int q = c_.heads * c_.dim, kv = c_.kv_heads * c_.dim;
    to.attn_norm = vector(l, c_.hidden, 1), to.ffn_norm = vector(l, c_.hidden, 1);
    to.matrix[0] = matrix(l, c_.format, q, c_.hidden), to.matrix[1] = matrix(l, c_.format, kv, c_.hidden);
    to.matrix[2] = matrix(l, c_.format, kv, c_.hidden), to.matrix[3] = matrix(l, c_.format, c_.hidden, q);
    to.q_bias = vector(l, q, 0), to.o_bias = vector(l, c_.hidden, 0);
    if (c_.normed) to.q_norm = vector(l, c_.dim, 1), to.k_norm = vector(l, c_.dim, 1);
    if (c_.sinks) to.sinks = vector(l, c_.heads, 0);
    to.router = matrix(l, c_.router, c_.experts, c_.hidden), to.router_bias = vector(l, c_.experts, 0);
    const int64_t of_matrix = int64_t(c_.ffn) * c_.hidden;
    const uint8_t* all = matrix(l, c_.format, 3 * c_.experts, of_matrix);
    for (int e = 0; e < c_.experts; ++e) {
      const uint8_t* at = all + 6 * e * of_matrix;
      l.experts.push_back({{at}, {at + 2 * of_matrix}, {at + 4 * of_matrix}});
    }
    l.table = std::make_unique<Device<ExpertEntry>>(l.experts);
    to.table = l.table->get();
    const Fmt kv_format = c_.kv_type == 1 ? Fmt::kF16 : Fmt::kBF16;
    to.keys = const_cast<uint8_t*>(matrix(l, kv_format, int64_t(blocks) * kBlock, kv));
    to.values = const_cast<uint8_t*>(matrix(l, kv_format, int64_t(blocks) * kBlock, kv));
    to.block_table = blocks_->get(), to.max_blocks = blocks, to.window = c_.window;
  }

  void product(Fmt format, const uint8_t* w, const float* bias, int n, int cols, const float* x, float* out) {
    MatmulParams p;
    p.format = format, p.n = n, p.cols = cols, p.single.w[0] = {w, nullptr, bias}, p.rows = 1;
    p.x = x, p.x_stride = cols, p.out = out, p.out_stride = n;
    check(matmul(p, nullptr), "matmul");
  }
  void plain_layer(const LayerOf& l, const Layer& host) {
    const int q_width = c_.heads * c_.dim, kv = c_.kv_heads * c_.dim;
    const Device<float> normed(c_.hidden), q(q_width), k(kv), v(kv), out(q_width), add(c_.hidden), logits(c_.experts);
    check(norm({false, 1, c_.hidden, 1e-6f, l.attn_norm, nullptr, x_.get(), normed.get()}, nullptr), "norm");
    product(c_.format, l.matrix[0], l.q_bias, q_width, c_.hidden, normed.get(), q.get());
    product(c_.format, l.matrix[1], nullptr, kv, c_.hidden, normed.get(), k.get());
    product(c_.format, l.matrix[2], nullptr, kv, c_.hidden, normed.get(), v.get());
    const auto prepare = [&](float* x, const float* weight, int heads) {
      if (weight) check(norm({false, heads, c_.dim, 1e-6f, weight, nullptr, x, x}, nullptr), "norm");
      check(rope({1, heads, c_.dim, 0, c_.dim, int64_t(heads) * c_.dim, false, p_.cos, p_.sin, x}, nullptr), "rope");
    };
    prepare(q.get(), l.q_norm, c_.heads), prepare(k.get(), l.k_norm, c_.kv_heads);
    AttentionParams a;
    a.kv = {c_.kv_type, kBlock, c_.kv_heads, c_.dim,      c_.dim,        l.keys,
            l.values,   1,      p_.position, p_.sequence, l.block_table, l.max_blocks};
    check(store_kv(a.kv, k.get(), v.get(), nullptr), "store_kv");
    a.heads = c_.heads, a.window = c_.window, a.scale = p_.scale, a.sinks = l.sinks;
    a.q = q.get(), a.out = out.get(), a.reach = c_.position + 1;
    const Device<float> space(attention_scratch_floats(1, c_.heads, c_.dim, a.reach));
    a.scratch = space.get();
    check(attention(a, nullptr), "attention");
    product(c_.format, l.matrix[3], l.o_bias, c_.hidden, q_width, out.get(), add.get());
    check(add_scaled(x_.get(), add.get(), 1.f, c_.hidden, nullptr), "add");
    check(norm({false, 1, c_.hidden, 1e-6f, l.ffn_norm, nullptr, x_.get(), normed.get()}, nullptr), "norm");
    product(c_.router, l.router, l.router_bias, c_.experts, c_.hidden, normed.get(), logits.get());
    const Device<int32_t> ids(c_.top_k);
    const Device<float> weights(c_.top_k), gate(c_.ffn), up(c_.ffn), down(int64_t(c_.top_k) * c_.hidden);
    RouteParams r = p_.route;
    r.logits = logits.get(), r.ids = ids.get(), r.weights = weights.get();
    check(route(r, nullptr), "route"), check(cudaDeviceSynchronize(), "route");
    const std::vector<int32_t> chosen = ids.host();
    for (int i = 0; i < c_.top_k; ++i) {
      const ExpertEntry& e = host.experts[size_t(chosen[size_t(i)])];
      product(c_.format, e.gate.data, nullptr, c_.ffn, c_.hidden, normed.get(), gate.get());
      product(c_.format, e.up.data, nullptr, c_.ffn, c_.hidden, normed.get(), up.get());
      check(activation({Act::kSilu, 0, 0, 1, c_.ffn, c_.ffn, c_.ffn, gate.get(), up.get(), gate.get()}, nullptr),
            "act");
      product(c_.format, e.down.data, nullptr, c_.hidden, c_.ffn, gate.get(), down.get() + int64_t(i) * c_.hidden);
    }
    check(combine(down.get(), weights.get(), 1, c_.hidden, c_.top_k, add.get(), nullptr), "combine");
    check(add_scaled(x_.get(), add.get(), 1.f, c_.hidden, nullptr), "add");
    check(cudaDeviceSynchronize(), "layer");
  }

  Case c_;
  LayersParams p_;
  std::vector<Layer> layers_;
  Device<float> cos_, sin_, x_;
  std::unique_ptr<Device<int32_t>> blocks_, at_;
  std::unique_ptr<Device<float>> scratch_;
  std::unique_ptr<Device<unsigned>> arrived_;
  uint32_t seed_ = 100;
};

// Keys are rounded to 16 bits: what differs in the last digits before may differ by more afterwards.
void run(const Case& c, bool timed) {
  const double bound = timed ? 1e-2 : 1e-4;
  std::printf("%-22s %d layers, position %5d:", c.name, c.layers, c.position);
  Model m(c);
  if (!m.taken()) {
    std::printf(" no kernel\n");
    return;
  }
  const std::vector<float> a = m.fast(), b = m.plain(), again = m.fast();
  double off = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i)
    off += std::pow(double(a[i]) - double(b[i]), 2), all += std::pow(double(b[i]), 2);
  const double error = std::sqrt(off / all);
  const bool same = std::memcmp(a.data(), again.data(), a.size() * sizeof(float)) == 0;
  std::printf(" error %.1e%s%s", error, error < bound ? "" : " TOO LARGE", same ? "" : " NOT THE SAME TWICE");
  g_bad += !(error < bound) + !same;
  if (timed) {
    const double us = m.microseconds();
    std::printf("  %6.2f us a layer, %5.0f GB/s, %4.1f %% of the bound", us, m.bytes() / us / 1e3,
                100 * m.bytes() / us * 1e6 / kBytesPerSecond);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace ef::cuda

int main(int argc, char** argv) {
  using namespace ef::cuda;
  const bool small = argc > 1 && std::string(argv[1]) == "--check";
  const Fmt bf16 = Fmt::kBF16, f16 = Fmt::kF16, f32 = Fmt::kF32;
  const Case tiny[] = {
      {"small", bf16, f32, 80, 4, 2, 16, 48, 8, 2, 3, 5},
      {"short rows", f16, bf16, 256, 4, 1, 64, 256, 8, 2, 2, 40, 2},
      {"several rows, pieces", bf16, bf16, 512, 4, 1, 32, 768, 9, 3, 2, 700},
      {"a window, sinks", bf16, f16, 256, 2, 2, 80, 512, 8, 8, 2, 600, 1, 300, false, true},
      {"long rows", bf16, f32, 2560, 4, 2, 16, 2304, 4, 1, 2, 17},
  };
  for (const Case& c : tiny) run(c, false);
  if (!small)
    for (const int position : {100, 250, 1000, 4000, 16000})
      run({"Qwen3-30B-A3B, BF16", bf16, f32, 2048, 32, 4, 128, 768, 128, 8, 12, position}, true);
  return g_bad > 0;
}
