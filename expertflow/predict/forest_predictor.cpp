// The forest of arXiv 2510.26730 (random forest over gate-ahead's output, the token's embedding, earlier activations,
// layer and distance), one answer an expert. What the paper's features say of queues and memory is left out: it does
// not change routing.
#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/predict/forest.h"
#include "expertflow/predict/forest_features.h"
#include "expertflow/predict/host_router.h"
#include "expertflow/predict/predictor_table.h"
#include "expertflow/predict/router_history.h"

namespace ef {
namespace {

class ForestPredictor final : public Predictor {
 public:
  explicit ForestPredictor(const PredictorContext& context)
      : model_(context.model),
        config_(context.model.config),
        backend_(context.backend),
        max_rows_(context.max_rows),
        horizon_(context.horizon),
        layers_(LayerId(config_.layers.size())),
        experts_(config_.router.experts),
        mean_(context.trained->at("history.mean", layers_, experts_)),
        history_(layers_, experts_, mean_),
        odds_(config_) {
    const TrainedTensor* nodes = context.trained->find("forest.nodes");
    EF_CHECK(nodes != nullptr, ConfigError, "predictor 'forest': {} holds none", context.trained->file);
    EF_CHECK(backend_.memory_is_host(), ConfigError,
             "predictor 'forest': works where the host sees activations, not on {}", backend_.name());
    forest_ = Forest::from(*nodes, context.trained->file);
    const uint64_t rows = uint64_t(max_rows_), targets = uint64_t(horizon_) + 1;
    memory_ =
        backend_.allocate(rows * (uint64_t(config_.hidden) * 2 + 2 * targets * uint64_t(experts_)) * sizeof(float),
                          {Region::kDynamic, "forecasts"});
    normed_ = memory_.as<float>();
    embedding_ = normed_ + max_rows_ * config_.hidden;
    logits_ = embedding_ + max_rows_ * config_.hidden;
    rows_of_.resize(size_t(experts_));
    features_.resize(size_t(RouterHistory::kParts * experts_));
    biases_.resize(size_t(layers_));
    for (LayerId l = 0; l < layers_; ++l)
      if (config_.layers[size_t(l)].sparse) biases_[size_t(l)] = read_selection_bias(model_, backend_, l);
  }
  std::string_view name() const override { return "forest"; }
  bool covers(StepPoint point, LayerId layer, LayerId target) const override {
    return point == StepPoint::kRouted && layer >= 0 && target > layer && target < layers_ &&
           target - layer <= horizon_ && config_.layers[size_t(layer)].sparse && config_.layers[size_t(target)].sparse;
  }
  PredictorCost cost(StepPoint, LayerId, LayerId) const override {
    const uint64_t products = 2 * uint64_t(experts_) * uint64_t(config_.hidden);
    const uint64_t visits = uint64_t(experts_) * Forest::kTrees * Forest::kDepth;
    return {2 * products + visits, products / 2 + std::min<uint64_t>(visits, forest_.nodes()) * 3};
  }
  uint64_t parameters() const override { return forest_.nodes() * 3; }

  void begin_step(const StepStart& start) override {
    history_.begin_step(start);
    embedded_ = 0;
  }
  void observe(const StepView& view) override {
    history_.observe(view);
    if (view.point != StepPoint::kLayerInput || view.layer != 0 || view.rows > max_rows_) return;
    std::copy_n(view.residual, view.rows * config_.hidden, embedding_);
    embedded_ = view.rows;
  }
  void queue(const StepView& view, LayerId first, LayerId last, Stream& stream) override {
    EF_DCHECK(view.rows >= 1 && view.rows <= max_rows_ && last - first <= horizon_);
    layer_ = view.layer, first_ = first, rows_ = view.rows;
    for (LayerId target = first; target <= last; ++target) {
      if (!config_.layers[size_t(target)].sparse) continue;
      const LayerWeights& w = model_.weights.layers[size_t(target)];
      for (const bool embedded : {false, true}) {
        const float* from = embedded && embedded_ == rows_ ? embedding_ : view.residual;
        backend_.norm(stream, {config_.norm, rows_, config_.hidden, config_.norm_eps, w.ffn_norm, w.ffn_norm_bias, from,
                               normed_});
        backend_.linear(stream, {w.router, w.router_bias, rows_, normed_, logits_of(target, embedded)});
      }
    }
  }
  void finish(LayerId target, float* probabilities) override {
    const std::vector<float>& bias = biases_[size_t(target)];
    for (int64_t r = 0; r < rows_; ++r) {
      history_.features(r, layer_, target, features_.data());
      odds_.rows(logits_of(target, false) + r * experts_, logits_of(target, true) + r * experts_,
                 bias.empty() ? nullptr : bias.data(), features_.data(), &features_[size_t(3 * experts_)],
                 &mean_.values[size_t(target) * size_t(experts_)], target - layer_, target, rows_of_.data());
      for (int e = 0; e < experts_; ++e) probabilities[r * experts_ + e] = forest_.predict(rows_of_[size_t(e)]);
    }
  }

 private:
  float* logits_of(LayerId target, bool embedded) {
    return logits_ + (2 * int64_t(target - first_) + embedded) * max_rows_ * experts_;
  }
  const Model& model_;
  const Config& config_;
  Backend& backend_;
  const int64_t max_rows_;
  const int horizon_;
  const LayerId layers_;
  const int experts_;
  const TrainedTensor& mean_;
  RouterHistory history_;
  ForestFeatures odds_;
  Forest forest_;
  Buffer memory_;
  float *normed_ = nullptr, *embedding_ = nullptr, *logits_ = nullptr;  // [T, hidden] x 2, [targets, 2, T, experts]
  std::vector<ForestRow> rows_of_;                                      // by expert
  std::vector<float> features_;
  std::vector<std::vector<float>> biases_;
  int64_t embedded_ = 0;
  // of the last queue()
  LayerId layer_ = 0, first_ = 0;
  int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<Predictor> make_forest(const PredictorContext& context) {
  return std::make_unique<ForestPredictor>(context);
}

}  // namespace ef
