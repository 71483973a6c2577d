// Products on tensor cores against the float32 kernels: relative errors, then times, at the shapes of a prefill of
// Qwen3-30B-A3B.
//   nvcc -O3 -std=c++17 -arch=sm_90 --extended-lambda -fmad=false -I. lab/gemm.cu expertflow/backend/cuda/device/*.cu
//     -o gemm_lab
//   gemm_lab               small shapes of every format, then the model's, with times
//   gemm_lab --check       small shapes
//   gemm_lab --few         the model's with up to 64 rows, no prefill
//   gemm_lab --once ROWS   the model's products once, for a profiler:
//     ncu --clock-control none --metrics gpu__time_duration.sum gemm_lab --once 512
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "expertflow/backend/cuda/device/gemm_task.cuh"
#include "lab/device.cuh"
#include "lab/weights.cuh"

namespace ef::cuda {
namespace {

constexpr double kPeak = 790;  // TFLOP/s: a large bfloat16 product of the vendor's library on an H200

std::mt19937& generator() {
  static std::mt19937 g(1);
  return g;
}
std::vector<float> normal(int64_t count) {
  std::normal_distribution<float> d;
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = d(generator());
  return v;
}

double error_of(const std::vector<float>& out, const std::vector<float>& ref) {
  double wrong = 0, all = 0;
  for (size_t i = 0; i < ref.size(); ++i) {
    const double e = double(out[i]) - double(ref[i]);
    wrong += e * e, all += double(ref[i]) * double(ref[i]);
  }
  return std::sqrt(wrong / all);  // NaN where a number was not written
}

// Microseconds of run(i), the middle of several rounds.
template <class F>
double time_us(int rounds, F&& run) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event"), check(cudaEventCreate(&end), "event");
  constexpr int kInRound = 8;
  run(0), run(1);
  std::vector<double> times;
  for (int r = 0; r < rounds; ++r) {
    check(cudaEventRecord(begin, nullptr), "event");
    for (int i = 0; i < kInRound; ++i) run(i);
    check(cudaEventRecord(end, nullptr), "event");
    check(cudaEventSynchronize(end), "event");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    times.push_back(1000. * double(ms) / kInRound);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return times[size_t(rounds / 2)];
}

void print(const char* what, const char* version, Fmt format, int64_t rows, double flop, double us, double error) {
  std::printf("%-22s %-5s rows %5lld  %-9s", what, name_of(format), static_cast<long long>(rows), version);
  if (us > 0) {
    const double rate = flop / us * 1e-6;
    std::printf(" %9.1f us %7.1f TFLOP/s %5.1f %%", us, rate, 100 * rate / kPeak);
  }
  if (error >= 0) std::printf("  error %.1e%s", error, error < (format == Fmt::kBF16 ? 1e-2 : 1e-3) ? "" : "  WRONG");
  std::printf("\n");
  std::fflush(stdout);
}

struct Lab {
  bool check_only = false, once = false, few = false;
};
constexpr int kRounds = 5;

// A projection: n outputs of `cols` inputs. Returns microseconds of the product as the backend calls it.
double dense(const Lab& lab, const char* what, Fmt format, int64_t rows, std::vector<int64_t> ns, int64_t cols) {
  int64_t all = 0;
  for (const int64_t n : ns) all += n;
  const int64_t bytes = bytes_of(format, cols) * all;
  const int copies = lab.check_only ? 1 : int(std::max<int64_t>(2, (200 << 20) / bytes));
  Device<uint8_t> weights(bytes * copies);
  check(fill_weights(format, weights.get(), bytes * copies, 7), "fill");
  Device<float> scales(all / 128 * ((cols + 127) / 128) * copies + 1);
  check(fill_scales(scales.get(), all / 128 * ((cols + 127) / 128) * copies + 1), "fill");
  Device<float> x(normal(rows * cols)), out(rows * all), ref(rows * all);
  const auto weights_at = [&](int copy, int64_t row) {
    Weights w;
    w.data = weights.get() + bytes * copy + bytes_of(format, cols) * row;
    if (format == Fmt::kF8E4M3) w.scales = scales.get() + (all * copy + row) / 128 * ((cols + 127) / 128);
    return w;
  };

  GemmParams p;
  p.format = format, p.rows = rows, p.n = ns[0], p.cols = cols, p.x = x.get(), p.x_stride = cols;
  p.out = out.get(), p.out_stride = ns[0];
  p.more = int(ns.size()) - 1;
  const auto at_copy = [&](int copy) {
    p.w = weights_at(copy, 0);
    int64_t row = ns[0];
    for (int i = 0; i < p.more; ++i) {
      p.also[i] = {format, weights_at(copy, row), ns[size_t(i) + 1], out.get() + rows * row};
      row += ns[size_t(i) + 1];
    }
  };
  at_copy(0);
  Device<unsigned char> scratch(int64_t(gemm_scratch(p)));
  p.scratch = scratch.get();

  const auto fast = [&](int i) {
    at_copy(i % copies);
    check(gemm(p, nullptr), "gemm");
  };
  if (lab.once) {
    fast(0);
    check(cudaDeviceSynchronize(), "gemm");
    return 1;
  }
  const auto naive = [&](int i) {
    int64_t row = 0;
    for (const int64_t n : ns) {
      MatmulParams m;
      m.format = format, m.n = n, m.cols = cols, m.single.w[0] = weights_at(i % copies, row), m.rows = rows;
      m.x = x.get(), m.x_stride = cols, m.out = ref.get() + rows * row, m.out_stride = n;
      check(matmul(m, nullptr), "matmul");
      row += n;
    }
  };
  naive(0), fast(0);
  const std::vector<float> reference = ref.host();
  const double error = error_of(out.host(), reference), flop = 2. * double(rows) * double(all) * double(cols);
  if (lab.check_only) {
    print(what, "gemm", format, rows, flop, 0, error);
    return 0;
  }
  print(what, "float32", format, rows, flop, time_us(1, naive), -1);
  // Tile by tile, the activations narrowed before.
  const bool few = rows <= kMostFewRows;
  for (const int tile : few ? std::vector<int>{few_tile_rows(rows)} : std::vector<int>{16, 32, 64, 128}) {
    Carve carve(scratch.get());
    const NarrowRows narrowed = carve_narrow(carve, rows, cols, few);
    check(narrow(narrow_of(format), x.get(), cols, rows, cols, narrowed, nullptr), "narrow");
    const auto tiled = [&](int i) {
      GemmTask task;
      set_input(task, narrowed, cols);
      int64_t row = 0;
      for (const int64_t n : ns) {
        GemmPart part;
        part.w = weights_at(i % copies, row), part.n = n, part.out = out.get() + rows * row, part.out_stride = n;
        add_part(task, part);
        row += n;
      }
      task.rows = rows, task.tile_rows = tile, task.few = few;
      check(gemm_as(format, task, nullptr), "gemm_as");
    };
    out.poison();
    tiled(0);
    const double e = error_of(out.host(), reference);
    char version[16];
    std::snprintf(version, sizeof version, "tile %d", tile);
    print(what, version, format, rows, flop, time_us(kRounds, tiled), e);
  }
  const double us = time_us(kRounds, fast);
  print(what, "gemm", format, rows, flop, us, error);
  return us;
}

// The float32 kernels for a sparse layer, with groups made on the host.
class Reference {
 public:
  Reference(const RoutedParams& p, const std::vector<ExpertEntry>& table, const std::vector<int32_t>& ids) : p_(p) {
    std::vector<Group> gate_up(table.size()), down(table.size());
    std::vector<Tile> tiles;
    std::vector<int32_t> order;
    for (size_t e = 0; e < table.size(); ++e) {
      gate_up[e].w[0] = table[e].gate, gate_up[e].w[1] = table[e].up, down[e].w[0] = table[e].down;
      const size_t first = order.size();
      for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] == int32_t(e)) order.push_back(int32_t(i));
      for (size_t i = first; i < order.size(); i += kTileRows)
        tiles.push_back({int32_t(e), int32_t(i), int32_t(std::min<size_t>(kTileRows, order.size() - i))});
    }
    tile_count_ = int64_t(tiles.size());
    gate_up_ = std::make_unique<Device<Group>>(gate_up), down_ = std::make_unique<Device<Group>>(down);
    tiles_ = std::make_unique<Device<Tile>>(tiles), order_ = std::make_unique<Device<int32_t>>(order);
    middle_ = std::make_unique<Device<float>>(p.rows * p.top_k * 2 * p.ffn);
    wide_ = std::make_unique<Device<float>>(p.rows * p.top_k * p.hidden);
  }
  void run(float* out) {
    MatmulParams m;
    m.tiles = tiles_->get(), m.tile_count = tile_count_, m.groups = gate_up_->get();
    m.n = p_.ffn, m.cols = p_.hidden, m.x_row = order_->get(), m.x_divisor = p_.top_k;
    m.x = p_.x, m.x_stride = p_.hidden, m.out = middle_->get(), m.out_stride = 2 * p_.ffn;
    m.format = p_.gate_format, m.matrices = p_.gate_format == p_.up_format ? 2 : 1;
    check(matmul(m, nullptr), "matmul");
    if (m.matrices == 1) {
      m.format = p_.up_format, m.first_matrix = 1, m.out += p_.ffn;
      check(matmul(m, nullptr), "matmul");
    }
    ActivationParams act = p_.activation;
    act.rows = p_.rows * p_.top_k, act.width = p_.ffn, act.in_stride = act.out_stride = 2 * p_.ffn;
    act.gate = middle_->get(), act.up = act.gate + p_.ffn, act.out = middle_->get();
    check(activation(act, nullptr), "activation");
    m.format = p_.down_format, m.groups = down_->get(), m.matrices = 1, m.first_matrix = 0;
    m.n = p_.hidden, m.cols = p_.ffn, m.x_row = nullptr, m.x_divisor = 1, m.out_row = order_->get();
    m.x = middle_->get(), m.x_stride = 2 * p_.ffn, m.out = wide_->get(), m.out_stride = p_.hidden;
    check(matmul(m, nullptr), "matmul");
    check(combine(wide_->get(), p_.weights, p_.rows, p_.hidden, p_.top_k, out, nullptr), "combine");
  }

 private:
  RoutedParams p_;
  int64_t tile_count_ = 0;
  std::unique_ptr<Device<Group>> gate_up_, down_;
  std::unique_ptr<Device<Tile>> tiles_;
  std::unique_ptr<Device<int32_t>> order_;
  std::unique_ptr<Device<float>> middle_, wide_;
};

// Choices that favour some experts, as routers do: logits with a share of their own for every expert.
std::vector<int32_t> choose(int64_t rows, int experts, int top_k) {
  const std::vector<float> favour = normal(experts);
  std::vector<int32_t> ids, order(static_cast<size_t>(experts));
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> logits = normal(experts);
    for (int e = 0; e < experts; ++e) logits[size_t(e)] += 0.5f * favour[size_t(e)], order[size_t(e)] = e;
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                      [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
    ids.insert(ids.end(), order.begin(), order.begin() + top_k);
  }
  return ids;
}

double routed(const Lab& lab, Fmt gate_up, Fmt down, int64_t rows, int experts, int top_k, int64_t hidden,
              int64_t ffn) {
  const int64_t wide = bytes_of(gate_up, hidden) * ffn, narrow_bytes = bytes_of(down, ffn) * hidden;
  Device<uint8_t> first(2 * wide * experts), second(narrow_bytes * experts);
  check(fill_weights(gate_up, first.get(), 2 * wide * experts, 11), "fill");
  check(fill_weights(down, second.get(), narrow_bytes * experts, 12), "fill");
  const int64_t scale_count = (ffn + 127) / 128 * ((hidden + 127) / 128);
  Device<float> scales(3 * scale_count * experts);
  check(fill_scales(scales.get(), 3 * scale_count * experts), "fill");
  std::vector<ExpertEntry> entries(static_cast<size_t>(experts));
  for (int e = 0; e < experts; ++e) {
    ExpertEntry& entry = entries[size_t(e)];
    entry.gate.data = first.get() + 2 * wide * e, entry.up.data = entry.gate.data + wide;
    entry.down.data = second.get() + narrow_bytes * e;
    entry.gate.scales = scales.get() + 3 * scale_count * e;
    entry.up.scales = entry.gate.scales + scale_count, entry.down.scales = entry.up.scales + scale_count;
  }
  const std::vector<int32_t> ids = choose(rows, experts, top_k);
  std::vector<float> shares(ids.size());
  for (float& v : shares) v = std::uniform_real_distribution<float>(0.05f, 0.3f)(generator());

  Device<ExpertEntry> table(entries);
  Device<int32_t> chosen(ids);
  Device<float> weights(shares), x(normal(rows * hidden)), out(rows * hidden), ref(rows * hidden);
  RoutedParams p;
  p.rows = rows, p.hidden = hidden, p.ffn = ffn, p.experts = experts, p.top_k = top_k;
  p.gate_format = p.up_format = gate_up, p.down_format = down;
  p.table = table.get(), p.ids = chosen.get(), p.weights = weights.get(), p.x = x.get(), p.out = out.get();
  Device<unsigned char> scratch(int64_t(routed_gemm_scratch(p)));
  p.scratch = scratch.get();

  const auto fast = [&](int) { check(routed_gemm(p, nullptr), "routed_gemm"); };
  if (lab.once) {
    fast(0);
    check(cudaDeviceSynchronize(), "routed_gemm");
    return 1;
  }
  Reference reference(p, entries, ids);
  reference.run(ref.get());
  const std::vector<float> expected = ref.host();
  const double flop = 6. * double(rows) * top_k * double(hidden) * double(ffn);
  const Fmt strictest = gate_up == Fmt::kBF16 || down == Fmt::kBF16 ? Fmt::kBF16 : gate_up;
  if (!lab.check_only)
    print("experts", "float32", strictest, rows, flop, time_us(1, [&](int) { reference.run(ref.get()); }), -1);
  for (const int tile : rows <= 4 * kMostFewRows ? std::vector<int>{8, 16, 32, 64} : std::vector<int>{64, 128}) {
    const auto tiled = [&](int) { check(routed_gemm_tiled(p, tile, nullptr), "routed_gemm_tiled"); };
    out.poison(), scratch.poison();
    tiled(0);
    const double e = error_of(out.host(), expected);
    char version[16];
    std::snprintf(version, sizeof version, "tile %d", tile);
    print("experts", version, strictest, rows, flop, lab.check_only ? 0 : time_us(kRounds, tiled), e);
  }
  out.poison(), scratch.poison();
  fast(0);
  const double e = error_of(out.host(), expected), us = lab.check_only ? 0 : time_us(kRounds, fast);
  print("experts", "routed", strictest, rows, flop, us, e);
  return us;
}

void model(const Lab& lab, const char* name, Fmt most, Fmt some, int64_t rows) {
  // Q4_K_M: v and down are of the finer format in half of the layers.
  const double qkv = dense(lab, "q, k, v", most, rows, {4096, 512, 512}, 2048);
  const double out = dense(lab, "o", most, rows, {2048}, 4096);
  const double coarse = routed(lab, most, most, rows, 128, 8, 2048, 768);
  const double fine = some == most ? coarse : routed(lab, most, some, rows, 128, 8, 2048, 768);
  if (some != most) dense(lab, "v", some, rows, {512}, 2048);
  if (lab.once) return;
  const double layer = qkv + out + (coarse + fine) / 2;
  std::printf("%s, chunks of %lld rows: %.1f us a layer, %.0f tokens/s of 48 layers' products\n", name,
              static_cast<long long>(rows), layer, double(rows) / (48 * layer) * 1e6);
}

void small(const Lab& lab) {
  for (int f = 0; f < int(Fmt::kCount); ++f) {
    for (const int64_t rows : {3, 13, 32, 70}) dense(lab, "136 outputs, width 512", Fmt(f), rows, {136}, 512);
    dense(lab, "130 x 2 x 256", Fmt(f), 130, {256, 256}, 256);
    for (const int64_t rows : {5, 40}) routed(lab, Fmt(f), Fmt(f), rows, 6, 3, 256, 256);
  }
}

}  // namespace
}  // namespace ef::cuda

int main(int argc, char** argv) {
  using namespace ef::cuda;
  Lab lab;
  lab.check_only = argc == 2 && std::strcmp(argv[1], "--check") == 0;
  lab.few = argc == 2 && std::strcmp(argv[1], "--few") == 0;
  lab.once = argc == 3 && std::strcmp(argv[1], "--once") == 0;
  if (argc > 1 && !lab.check_only && !lab.once && !lab.few) {
    std::fprintf(stderr, "usage: gemm_lab [--check | --few | --once ROWS]\n");
    return 2;
  }
  if (lab.once) {
    const int64_t rows = std::max(1, std::atoi(argv[2]));
    model(lab, "Q4_K with Q6_K", Fmt::kQ4K, Fmt::kQ6K, rows);
    model(lab, "BF16", Fmt::kBF16, Fmt::kBF16, rows);
    return 0;
  }
  small({true, false, false});
  if (lab.check_only) return 0;
  for (const int64_t rows : {1, 4, 8, 16, 32, 64}) {
    model(lab, "Q4_K with Q6_K", Fmt::kQ4K, Fmt::kQ6K, rows);
    model(lab, "BF16", Fmt::kBF16, Fmt::kBF16, rows);
  }
  if (lab.few) return 0;
  for (const int64_t rows : {512, 2048}) {
    model(lab, "Q4_K with Q6_K", Fmt::kQ4K, Fmt::kQ6K, rows);
    model(lab, "BF16", Fmt::kBF16, Fmt::kBF16, rows);
    for (const Fmt f : {Fmt::kQ8_0, Fmt::kQ4_0, Fmt::kQ5K, Fmt::kMXFP4, Fmt::kF16, Fmt::kF8E4M3})
      routed(lab, f, f, rows, 128, 8, 2048, 768);
  }
  return 0;
}
