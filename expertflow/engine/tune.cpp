#include "expertflow/engine/tune.h"

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

#include "expertflow/base/user_cache.h"

namespace ef {

namespace {

constexpr int64_t kRows = kTuningRows;
// Results of a vocabulary's width would take more memory than the answer is worth.
constexpr int64_t kMostOutputs = 1 << 15;

std::vector<MatrixView> shapes_of(const Model& model) {
  std::vector<MatrixView> out;
  std::set<std::tuple<Format, int64_t, int64_t>> seen;
  const auto add = [&](const MatrixView& w) {
    if (w.data && w.rows <= kMostOutputs && seen.insert({w.format, w.rows, w.cols}).second) out.push_back(w);
  };
  for (const LayerWeights& l : model.weights.layers) {
    for (const MatrixView* w : {&l.q, &l.k, &l.v, &l.o, &l.q_a, &l.kv_a, &l.dense_gate, &l.dense_up, &l.dense_down,
                                &l.shared_gate, &l.shared_up, &l.shared_down})
      add(*w);
  }
  return out;
}

// Random numbers and choices for kRows rows, and room for results.
class Inputs {
 public:
  Inputs(Backend& backend, Stream& stream, int64_t cols, int64_t outputs, int experts, int top_k)
      : x_(backend.allocate(uint64_t(kRows * cols) * sizeof(float), kUse)),
        out_(backend.allocate(uint64_t(kRows * outputs) * sizeof(float), kUse)),
        weights_(backend.allocate(uint64_t(kRows * top_k) * sizeof(float), kUse)),
        ids_(backend.allocate(uint64_t(kRows * top_k) * sizeof(int32_t), kUse)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> x(size_t(kRows * cols)), weights(size_t(kRows * top_k), 1.f);
    for (float& v : x) v = normal(random);
    std::vector<int32_t> ids, all(static_cast<size_t>(experts));
    for (int e = 0; e < experts; ++e) all[size_t(e)] = e;
    for (int64_t r = 0; r < kRows; ++r) {
      std::shuffle(all.begin(), all.end(), random);
      ids.insert(ids.end(), all.begin(), all.begin() + top_k);
    }
    backend.copy_to_device(x_.data(), x.data(), x_.size(), stream);
    backend.copy_to_device(weights_.data(), weights.data(), weights_.size(), stream);
    backend.copy_to_device(ids_.data(), ids.data(), ids_.size(), stream);
    stream.synchronize();
  }
  const float* x() const { return x_.as<float>(); }
  float* out() const { return out_.as<float>(); }
  const float* weights() const { return weights_.as<float>(); }
  const int32_t* ids() const { return ids_.as<int32_t>(); }

 private:
  static constexpr MemoryUse kUse{Region::kDynamic, "measuring"};
  Buffer x_, out_, weights_, ids_;
};

}  // namespace

std::filesystem::path tuning_file() { return user_cache_file("tuning.json"); }

uint64_t tuning_bytes(const Config& config, const Binding& binding) {
  int64_t cols = config.hidden, outputs = config.hidden;
  for (const BoundTensor& b : binding.tensors) {
    if (b.spec->rows == Dim::kNone || b.tensor.rows() > kMostOutputs) continue;
    cols = std::max(cols, b.tensor.cols()), outputs = std::max(outputs, b.tensor.rows());
  }
  return uint64_t(kRows) * uint64_t(cols + outputs + 2 * std::max(config.router.top_k, 1)) * sizeof(float);
}

void tune_backend(Backend& backend, Stream& stream, const Model& model, const Experts& experts,
                  const std::filesystem::path& file, const Log& log) {
  const std::vector<MatrixView> shapes = shapes_of(model);
  std::vector<RoutedExpertsArgs> routed = experts.kinds();
  int64_t cols = 1, outputs = 1;
  for (const MatrixView& w : shapes) cols = std::max(cols, w.cols), outputs = std::max(outputs, w.rows);
  for (const RoutedExpertsArgs& a : routed) cols = std::max(cols, a.hidden), outputs = std::max(outputs, a.hidden);
  const RouterConfig& router = model.config.router;
  const Inputs in(backend, stream, cols, outputs, std::max(router.experts, 1), std::max(router.top_k, 1));

  std::vector<LinearArgs> products;
  for (const MatrixView& w : shapes) products.push_back({w, nullptr, kRows, in.x(), in.out()});
  for (RoutedExpertsArgs& a : routed)
    a.rows = kRows, a.ids = in.ids(), a.weights = in.weights(), a.x = in.x(), a.out = in.out();
  const int measured = backend.tune(stream, products, routed, file);
  stream.synchronize();
  if (measured > 0)
    log.info("measured which kernels are fastest for {} shapes{}", measured,
             file.empty() ? "" : " (kept in " + file.string() + ")");
}

}  // namespace ef
