// Trained heads: for each source layer and target a product with the stream, normalised but not weighted, and a smaller
// one with what the sequence's routers said before. Three rows of the table:
//
//   linear          from the MoE block's input, the stream alone: a ridge regression onto the later router's logits
//   hybrid          the same onto what gate-ahead gets wrong, with the history; the gate-ahead product is folded into
//                   the head's matrix, so that it costs what gate-ahead costs
//   pre-attention   from the stream before the layer's own attention, with the history: the only one that covers layer
//   0
#include <algorithm>

#include "expertflow/base/align.h"
#include "expertflow/base/errors.h"
#include "expertflow/predict/host_router.h"
#include "expertflow/predict/predictor_table.h"
#include "expertflow/predict/router_history.h"
#include "expertflow/predict/router_odds.h"

namespace ef {
namespace {

struct Kind {
  std::string_view name;
  StepPoint point;
  bool on_gate = false;  ///< corrects gate-ahead
};

class HeadPredictor final : public Predictor {
 public:
  HeadPredictor(const PredictorContext& context, const Kind& kind)
      : config_(context.model.config),
        backend_(context.backend),
        max_rows_(context.max_rows),
        horizon_(context.horizon),
        kind_(kind),
        layers_(LayerId(config_.layers.size())),
        odds_(config_.router) {
    load(context);
    const uint64_t rows = uint64_t(max_rows_), targets = uint64_t(horizon_) + 1, hidden = uint64_t(config_.hidden);
    const uint64_t experts = uint64_t(config_.router.experts);
    scratch_ =
        backend_.allocate((rows * (hidden + targets * experts)) * sizeof(float), {Region::kDynamic, "forecasts"});
    normed_ = scratch_.as<float>();
    logits_ = normed_ + max_rows_ * config_.hidden;
    host_logits_.resize(targets * rows * experts);
    features_.resize(size_t(RouterHistory::kParts) * experts);
  }

  std::string_view name() const override { return kind_.name; }
  bool covers(StepPoint point, LayerId layer, LayerId target) const override {
    return point == kind_.point && layer >= 0 && target >= layer && target < layers_ && target - layer <= horizon_ &&
           head(layer, target).present;
  }
  PredictorCost cost(StepPoint, LayerId layer, LayerId target) const override {
    const Head& h = head(layer, target);
    const uint64_t n = uint64_t(config_.router.experts) * uint64_t(config_.hidden) + h.history.size();
    return {2 * n + 3 * uint64_t(config_.hidden), n};
  }
  uint64_t parameters() const override { return parameters_; }

  void begin_step(const StepStart& start) override {
    if (history_) history_->begin_step(start);
  }
  void observe(const StepView& view) override {
    if (history_) history_->observe(view);
  }

  void queue(const StepView& view, LayerId first, LayerId last, Stream& stream) override {
    EF_DCHECK(view.rows >= 1 && view.rows <= max_rows_ && last - first <= horizon_);
    layer_ = view.layer, first_ = first, rows_ = view.rows;
    const int experts = config_.router.experts;
    backend_.norm(stream,
                  {config_.norm, rows_, config_.hidden, config_.norm_eps, ones_, nullptr, view.residual, normed_});
    for (LayerId target = first; target <= last; ++target) {
      const Head& h = head(view.layer, target);
      if (h.present)
        backend_.linear(stream, {h.weight, h.bias, rows_, normed_, logits_ + (target - first) * rows_ * experts});
    }
    const size_t all = size_t(last - first + 1) * size_t(rows_) * size_t(experts);
    backend_.copy_to_host(host_logits_.data(), logits_, all * sizeof(float), stream);
  }

  void finish(LayerId target, float* probabilities) override {
    const int experts = config_.router.experts;
    const Head& h = head(layer_, target);
    for (int64_t r = 0; r < rows_; ++r) {
      float* z = &host_logits_[size_t((int64_t(target - first_) * rows_ + r) * experts)];
      if (history_ && !h.history.empty()) add_history(h, r, target, z);
      const std::vector<float>& bias = selection_bias_[size_t(target)];
      odds_.row(z, bias.empty() ? nullptr : bias.data(), nullptr, h.slope, probabilities + r * experts);
    }
  }

 private:
  struct Head {
    bool present = false;
    MatrixView weight;            // [experts, hidden]
    const float* bias = nullptr;  // [experts]
    std::vector<float> history;   // [kParts * experts, experts]: a feature's row goes to all experts
    float slope = 1;
  };
  const Head& head(LayerId layer, LayerId target) const { return heads_[size_t(layer * layers_ + target)]; }

  void add_history(const Head& h, int64_t row, LayerId target, float* z) {
    const size_t experts = size_t(config_.router.experts);
    history_->features(row, layer_, target, features_.data());
    for (size_t f = 0; f < features_.size(); ++f) {
      const float x = features_[f];
      const float* w = &h.history[f * experts];
      for (size_t e = 0; e < experts; ++e) z[e] += x * w[e];
    }
  }

  void load(const PredictorContext& context) {
    const TrainedPredictor& trained = *context.trained;
    EF_CHECK(trained.has(kind_.name), ConfigError, "predictor '{}': {} holds none of that kind", kind_.name,
             trained.file);
    const int64_t experts = config_.router.experts, hidden = config_.hidden;
    heads_.resize(size_t(layers_) * size_t(layers_));
    selection_bias_.resize(size_t(layers_));
    std::vector<LayerId> found;  // layer * layers_ + target
    for (LayerId l = 0; l < layers_; ++l)
      for (LayerId t = l; t < layers_ && t - l <= horizon_; ++t)
        if (config_.layers[size_t(t)].sparse && trained.find(head_name(kind_.name, l, t, "weight")))
          found.push_back(l * layers_ + t);
    // Eight bits are plenty for a guess, and a head is read whole for every token.
    const Format format = hidden % 32 == 0 ? Format::kQ8_0 : Format::kF32;
    const uint64_t matrix = round_up(uint64_t(experts) * row_bytes(format, hidden), 64);
    const uint64_t vectors = (uint64_t(hidden) + found.size() * uint64_t(experts)) * sizeof(float);
    memory_ = backend_.allocate(found.size() * matrix + vectors, {Region::kDynamic, "predictor"});
    const auto stream = backend_.make_stream();
    std::byte* matrices = memory_.data();
    float* at = reinterpret_cast<float*>(matrices + found.size() * matrix);
    const auto place = [&](const std::vector<float>& values) {
      backend_.copy_to_device(at, values.data(), values.size() * sizeof(float), *stream);
      stream->synchronize();
      float* const here = at;
      at += values.size();
      return here;
    };
    const auto place_matrix = [&](const std::vector<float>& values) {
      std::vector<std::byte> bytes(matrix);
      format_info(format).quantize(values.data(), bytes.data(), int64_t(values.size()));
      backend_.copy_to_device(matrices, bytes.data(), bytes.size(), *stream);
      stream->synchronize();
      const MatrixView view{format, experts, hidden, matrices};
      matrices += matrix;
      return view;
    };
    ones_ = place(std::vector<float>(size_t(hidden), 1.f));
    std::vector<HostRouter> routers(static_cast<size_t>(layers_));
    bool wants_history = false;
    for (const LayerId index : found) {
      const LayerId l = index / layers_, t = index % layers_;
      Head& h = heads_[size_t(index)];
      std::vector<float> weight = trained.at(head_name(kind_.name, l, t, "weight"), experts, hidden).values;
      std::vector<float> bias = trained.at(head_name(kind_.name, l, t, "bias"), 1, experts + 1).values;
      h.slope = bias.back();
      bias.pop_back();
      HostRouter& router = routers[size_t(t)];
      if (router.weight.empty()) router = read_host_router(context.model, backend_, t);
      selection_bias_[size_t(t)] = router.selection_bias;
      if (kind_.on_gate) {
        for (size_t i = 0; i < weight.size(); ++i) weight[i] += router.weight[i];
        for (size_t e = 0; e < bias.size(); ++e) bias[e] += router.bias[e];
      }
      h.weight = place_matrix(weight);
      h.bias = place(bias);
      h.present = true;
      parameters_ += weight.size() + bias.size();
      const std::string name = head_name(kind_.name, l, t, "history");
      if (!trained.find(name)) continue;
      const int64_t features = RouterHistory::kParts * experts;
      const std::vector<float>& rows = trained.at(name, experts, features).values;
      h.history.resize(rows.size());
      for (int64_t e = 0; e < experts; ++e)
        for (int64_t f = 0; f < features; ++f) h.history[size_t(f * experts + e)] = rows[size_t(e * features + f)];
      parameters_ += rows.size();
      wants_history = true;
    }
    // Where the host does not see logits, nothing is known of earlier tokens.
    if (wants_history && backend_.memory_is_host())
      history_ = std::make_unique<RouterHistory>(layers_, int(experts), trained.at("history.mean", layers_, experts));
  }

  const Config& config_;
  Backend& backend_;
  const int64_t max_rows_;
  const int horizon_;
  const Kind kind_;
  const LayerId layers_;
  RouterOdds odds_;
  Buffer memory_, scratch_;
  const float* ones_ = nullptr;                  // [hidden]
  float *normed_ = nullptr, *logits_ = nullptr;  // [T, hidden], [targets, T, experts]
  std::vector<Head> heads_;                      // [layer, target]
  std::vector<std::vector<float>> selection_bias_;
  std::unique_ptr<RouterHistory> history_;
  std::vector<float> host_logits_, features_;
  uint64_t parameters_ = 0;
  // of the last queue()
  LayerId layer_ = 0, first_ = 0;
  int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<Predictor> make_linear(const PredictorContext& context) {
  return std::make_unique<HeadPredictor>(context, Kind{"linear", StepPoint::kRouted});
}
std::unique_ptr<Predictor> make_hybrid(const PredictorContext& context) {
  return std::make_unique<HeadPredictor>(context, Kind{"hybrid", StepPoint::kRouted, true});
}
std::unique_ptr<Predictor> make_pre_attention(const PredictorContext& context) {
  return std::make_unique<HeadPredictor>(context, Kind{"pre-attention", StepPoint::kLayerInput});
}

}  // namespace ef
