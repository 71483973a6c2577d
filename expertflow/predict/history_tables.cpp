// Baselines that see choices alone, no activations. They learn while they run, and need no file.
//
//   previous-token   a decaying count of what the sequence's earlier tokens chose at the target
//   transition       how often each expert of the target followed each expert of the layer (counts of all rows so far),
//                    summed over the experts that this row has just chosen
#include <algorithm>
#include <unordered_map>

#include "expertflow/base/errors.h"
#include "expertflow/predict/predictor_table.h"

namespace ef {
namespace {

// What both have in common: targets after a routed layer, choices read on the host, nothing on the stream.
class Table : public Predictor {
 public:
  explicit Table(const PredictorContext& context)
      : config_(context.model.config),
        horizon_(context.horizon),
        layers_(LayerId(config_.layers.size())),
        experts_(size_t(config_.router.experts)),
        top_k_(size_t(config_.router.top_k)) {}
  bool covers(StepPoint point, LayerId layer, LayerId target) const override {
    return point == StepPoint::kRouted && layer >= 0 && target > layer && target < layers_ &&
           target - layer <= horizon_ && config_.layers[size_t(layer)].sparse && config_.layers[size_t(target)].sparse;
  }
  uint64_t parameters() const override { return 0; }
  void queue(const StepView& view, LayerId, LayerId, Stream&) override {
    layer_ = view.layer, rows_ = size_t(view.rows);
    chosen_.assign(view.chosen.begin(), view.chosen.end());
  }

 protected:
  // Weights of any scale to probabilities that sum to top_k; nothing known: all alike.
  void normalise(float* p) const {
    float sum = 0;
    for (size_t e = 0; e < experts_; ++e) sum += p[e];
    for (size_t e = 0; e < experts_; ++e)
      p[e] = sum > 0 ? std::min(1.f, p[e] * float(top_k_) / sum) : float(top_k_) / float(experts_);
  }

  const Config& config_;
  const int horizon_;
  const LayerId layers_;
  const size_t experts_, top_k_;
  // of the last queue()
  LayerId layer_ = 0;
  size_t rows_ = 0;
  std::vector<int32_t> chosen_;
};

class PreviousToken final : public Table {
 public:
  using Table::Table;
  std::string_view name() const override { return "previous-token"; }
  PredictorCost cost(StepPoint, LayerId, LayerId) const override { return {experts_, experts_}; }
  void begin_step(const StepStart& start) override {
    const size_t size = size_t(layers_) * experts_;
    row_slot_.resize(size_t(start.rows()));
    for (size_t r = 0; r < row_slot_.size(); ++r) {
      const auto [it, fresh] = slots_.try_emplace(start.sequences[r], slots_.size());
      if (fresh) counts_.resize(slots_.size() * size);
      row_slot_[r] = it->second;
      if (start.positions[r] == 0) std::fill_n(counts_.begin() + std::ptrdiff_t(it->second * size), size, 0.f);
    }
  }
  void observe(const StepView& view) override {
    if (view.point != StepPoint::kRouted || view.chosen.size() != row_slot_.size() * top_k_) return;
    constexpr float kDecay = 0.8f;
    for (size_t r = 0; r < row_slot_.size(); ++r) {
      float* counts = at(row_slot_[r], view.layer);
      for (size_t e = 0; e < experts_; ++e) counts[e] *= kDecay;
      for (size_t i = 0; i < top_k_; ++i) counts[view.chosen[r * top_k_ + i]] += 1;
    }
  }
  void finish(LayerId target, float* probabilities) override {
    for (size_t r = 0; r < rows_; ++r) {
      float* p = probabilities + r * experts_;
      if (r < row_slot_.size())
        std::copy_n(at(row_slot_[r], target), experts_, p);
      else
        std::fill_n(p, experts_, 0.f);
      normalise(p);
    }
  }

 private:
  float* at(size_t slot, LayerId layer) { return &counts_[(slot * size_t(layers_) + size_t(layer)) * experts_]; }
  std::unordered_map<int32_t, size_t> slots_;  // by sequence
  std::vector<float> counts_;                  // [slots, layers, experts]
  std::vector<size_t> row_slot_;
};

class Transition final : public Table {
 public:
  explicit Transition(const PredictorContext& context) : Table(context) {
    counts_.resize(size_t(layers_) * size_t(std::max(horizon_, 1)) * experts_ * experts_);
    steps_.resize(size_t(layers_));
  }
  std::string_view name() const override { return "transition"; }
  PredictorCost cost(StepPoint, LayerId, LayerId) const override { return {top_k_ * experts_, top_k_ * experts_}; }
  void begin_step(const StepStart&) override {
    for (auto& step : steps_) step.clear();
  }
  void observe(const StepView& view) override {
    if (view.point != StepPoint::kRouted || view.chosen.empty()) return;
    steps_[size_t(view.layer)].assign(view.chosen.begin(), view.chosen.end());
    for (LayerId from = std::max(0, view.layer - horizon_); from < view.layer; ++from) {
      const std::vector<int32_t>& before = steps_[size_t(from)];
      if (before.size() != view.chosen.size()) continue;
      for (size_t r = 0; r < size_t(view.rows); ++r)
        for (size_t i = 0; i < top_k_; ++i)
          for (size_t j = 0; j < top_k_; ++j)
            followed(from, view.layer, before[r * top_k_ + i])[view.chosen[r * top_k_ + j]] += 1;
    }
  }
  void finish(LayerId target, float* probabilities) override {
    for (size_t r = 0; r < rows_; ++r) {
      float* p = probabilities + r * experts_;
      std::fill_n(p, experts_, 0.f);
      for (size_t i = 0; i < top_k_ && (r + 1) * top_k_ <= chosen_.size(); ++i) {
        const float* counts = followed(layer_, target, chosen_[r * top_k_ + i]);
        float sum = 1;
        for (size_t e = 0; e < experts_; ++e) sum += counts[e];
        for (size_t e = 0; e < experts_; ++e) p[e] += counts[e] / sum;
      }
      normalise(p);
    }
  }

 private:
  float* followed(LayerId from, LayerId target, int32_t expert) {
    const size_t pair = size_t(from) * size_t(horizon_) + size_t(target - from - 1);
    return &counts_[(pair * experts_ + size_t(expert)) * experts_];
  }
  std::vector<float> counts_;  // [layers, horizon, experts of the layer, experts of the target]
  std::vector<std::vector<int32_t>> steps_;
};

}  // namespace

std::unique_ptr<Predictor> make_previous_token(const PredictorContext& context) {
  return std::make_unique<PreviousToken>(context);
}
std::unique_ptr<Predictor> make_transition(const PredictorContext& context) {
  return std::make_unique<Transition>(context);
}

}  // namespace ef
