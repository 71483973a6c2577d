// The rule without training: the router of a later layer, applied to the stream as it is now. What the layers between
// will add is left out, so it is a guess, and a good one a layer or two ahead.
//
// The exact form normalises the residual stream with the later layer's own norm, so that at distance 0 it is that
// layer's router, bit for bit. The plain form takes this layer's MoE input as it is.
#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/model/blocks.h"
#include "expertflow/predict/host_router.h"
#include "expertflow/predict/predictor_table.h"
#include "expertflow/predict/router_odds.h"

namespace ef {
namespace {

// Logistic slopes per standard deviation of a row's scores: how sure a guess is, by distance. Fitted on the bundled
// model; ranking does not depend on them.
float slope_at(int distance) {
  constexpr float kSlopes[] = {12.f, 5.2f, 3.8f, 3.2f, 2.8f, 2.5f};
  return kSlopes[std::min(size_t(distance), std::size(kSlopes) - 1)];
}

class GateAhead final : public Predictor {
 public:
  GateAhead(const PredictorContext& context, bool plain)
      : model_(context.model),
        config_(context.model.config),
        backend_(context.backend),
        max_rows_(context.max_rows),
        horizon_(context.horizon),
        plain_(plain),
        odds_(config_.router) {
    EF_DCHECK(max_rows_ >= 1 && horizon_ >= 0);
    const uint64_t rows = uint64_t(max_rows_), targets = uint64_t(horizon_) + 1;
    const uint64_t experts = uint64_t(config_.router.experts), top_k = uint64_t(config_.router.top_k);
    memory_ = backend_.allocate(rows * (uint64_t(config_.hidden) + targets * (experts + 2 * top_k)) * sizeof(float),
                                {Region::kDynamic, "forecasts"});
    normed_ = memory_.as<float>();
    logits_ = normed_ + max_rows_ * config_.hidden;
    weights_ = logits_ + int64_t(targets) * max_rows_ * config_.router.experts;
    ids_ = reinterpret_cast<int32_t*>(weights_ + int64_t(targets) * max_rows_ * config_.router.top_k);
    host_logits_.resize(targets * rows * experts);
    host_ids_.resize(targets * rows * top_k);
    for (size_t l = 0; l < config_.layers.size(); ++l)
      biases_.push_back(config_.layers[l].sparse ? read_selection_bias(model_, backend_, LayerId(l))
                                                 : std::vector<float>());
  }

  std::string_view name() const override { return plain_ ? "gate-ahead-plain" : "gate-ahead"; }

  bool covers(StepPoint point, LayerId layer, LayerId target) const override {
    if (layer < 0 || target < layer || target - layer > horizon_ || size_t(target) >= config_.layers.size())
      return false;
    if (plain_ && point != StepPoint::kRouted) return false;
    return config_.layers[size_t(target)].sparse;
  }
  PredictorCost cost(StepPoint, LayerId, LayerId) const override {
    const uint64_t product = uint64_t(config_.router.experts) * uint64_t(config_.hidden);
    const uint64_t norm = plain_ ? 0 : uint64_t(config_.hidden);
    return {2 * product + 4 * norm, product + norm};
  }
  uint64_t parameters() const override { return 0; }

  void queue(const StepView& view, LayerId first, LayerId last, Stream& stream) override {
    EF_DCHECK(view.rows >= 1 && view.rows <= max_rows_ && last - first <= horizon_);
    first_ = first, distance_ = first - view.layer, rows_ = view.rows;
    const int top_k = config_.router.top_k, experts = config_.router.experts;
    for (LayerId target = first; target <= last; ++target) {
      if (!config_.layers[size_t(target)].sparse) continue;
      const LayerWeights& w = model_.weights.layers[size_t(target)];
      const float* in = view.x;
      if (!plain_) {
        backend_.norm(stream, {config_.norm, rows_, config_.hidden, config_.norm_eps, w.ffn_norm, w.ffn_norm_bias,
                               view.residual, normed_});
        in = normed_;
      }
      const int64_t at = int64_t(target - first) * rows_;
      route_rows(config_, w, backend_, stream,
                 {rows_, in, logits_ + at * experts, ids_ + at * top_k, weights_ + at * top_k});
    }
    const size_t all = size_t(last - first + 1) * size_t(rows_);
    backend_.copy_to_host(host_logits_.data(), logits_, all * size_t(experts) * sizeof(float), stream);
    backend_.copy_to_host(host_ids_.data(), ids_, all * size_t(top_k) * sizeof(int32_t), stream);
  }

  void finish(LayerId target, float* probabilities) override {
    const int64_t at = int64_t(target - first_) * rows_;
    const int experts = config_.router.experts, top_k = config_.router.top_k;
    const std::vector<float>& bias = biases_[size_t(target)];
    for (int64_t r = 0; r < rows_; ++r)
      odds_.row(&host_logits_[size_t((at + r) * experts)], bias.empty() ? nullptr : bias.data(),
                &host_ids_[size_t((at + r) * top_k)], slope_at(int(target - first_) + distance_),
                probabilities + r * experts);
  }

 private:
  const Model& model_;
  const Config& config_;
  Backend& backend_;
  const int64_t max_rows_;
  const int horizon_;
  const bool plain_;
  RouterOdds odds_;
  Buffer memory_;
  float *normed_ = nullptr, *logits_ = nullptr, *weights_ = nullptr;  // [T, H], [targets, T, experts], [.., top_k]
  int32_t* ids_ = nullptr;                                            // [targets, T, top_k]
  std::vector<float> host_logits_;
  std::vector<int32_t> host_ids_;
  std::vector<std::vector<float>> biases_;
  // of the last queue()
  LayerId first_ = 0;
  int distance_ = 0;
  int64_t rows_ = 0;
};

}  // namespace

std::unique_ptr<Predictor> make_gate_ahead(const PredictorContext& context) {
  return std::make_unique<GateAhead>(context, false);
}
std::unique_ptr<Predictor> make_gate_ahead_plain(const PredictorContext& context) {
  return std::make_unique<GateAhead>(context, true);
}

}  // namespace ef
