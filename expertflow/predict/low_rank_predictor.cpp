// The predictor of low_rank.h: the projection is on the stream, the perceptron and the targets' logits are a few
// thousand products on the host.
#include <algorithm>

#include "expertflow/base/align.h"
#include "expertflow/base/errors.h"
#include "expertflow/predict/host_router.h"
#include "expertflow/predict/low_rank.h"
#include "expertflow/predict/predictor_table.h"
#include "expertflow/predict/router_odds.h"

namespace ef {
namespace {

constexpr uint64_t kAlignment = 64;  // bytes, of what kernels read

class LowRankPredictor final : public Predictor {
 public:
  explicit LowRankPredictor(const PredictorContext& context)
      : config_(context.model.config),
        backend_(context.backend),
        max_rows_(context.max_rows),
        horizon_(std::min(context.horizon, kLowRankHorizon)),
        layers_(LayerId(config_.layers.size())),
        odds_(config_.router) {
    load(context);
    scratch_ = backend_.allocate(uint64_t(max_rows_) * uint64_t(config_.hidden + most_rank_) * sizeof(float),
                                 {Region::kDynamic, "forecasts"});
    normed_ = scratch_.as<float>();
    projected_ = normed_ + max_rows_ * config_.hidden;
    host_projected_.resize(size_t(max_rows_) * size_t(most_rank_));
    mixed_.resize(size_t(max_rows_) * size_t(most_width_));
    logits_.resize(size_t(config_.router.experts));
  }

  std::string_view name() const override { return kLowRank; }
  bool covers(StepPoint point, LayerId layer, LayerId target) const override {
    return point == StepPoint::kRouted && layer >= 0 && target > layer && target < layers_ &&
           target - layer <= horizon_ && !target_of(layer, target).weight.empty();
  }
  PredictorCost cost(StepPoint, LayerId layer, LayerId) const override {
    const LowRankMixer& m = sources_[size_t(layer)].mixer;
    const uint64_t n = uint64_t(m.rank) * uint64_t(config_.hidden) + m.mix.size() +
                       uint64_t(config_.router.experts) * uint64_t(m.rank + m.units);
    return {2 * n + 3 * uint64_t(config_.hidden), n};
  }
  uint64_t parameters() const override { return parameters_; }

  void queue(const StepView& view, LayerId, LayerId, Stream& stream) override {
    EF_DCHECK(view.rows >= 1 && view.rows <= max_rows_);
    layer_ = view.layer, rows_ = view.rows, is_mixed_ = false;
    const Source& source = sources_[size_t(layer_)];
    backend_.norm(stream,
                  {config_.norm, rows_, config_.hidden, config_.norm_eps, ones_, nullptr, view.residual, normed_});
    backend_.linear(stream, {source.projection, source.shift, rows_, normed_, projected_});
    backend_.copy_to_host(host_projected_.data(), projected_, size_t(rows_) * size_t(source.mixer.rank) * sizeof(float),
                          stream);
  }

  void finish(LayerId target, float* probabilities) override {
    const LowRankMixer& mixer = sources_[size_t(layer_)].mixer;
    const auto width = size_t(mixer.rank + mixer.units);
    if (!is_mixed_)
      for (int64_t r = 0; r < rows_; ++r)
        mixer(&host_projected_[size_t(r) * size_t(mixer.rank)], &mixed_[size_t(r) * width]);
    is_mixed_ = true;
    const Target& t = target_of(layer_, target);
    const std::vector<float>& bias = selection_bias_[size_t(target)];
    for (int64_t r = 0; r < rows_; ++r) {
      const float* x = &mixed_[size_t(r) * width];
      for (size_t e = 0; e < logits_.size(); ++e) {
        float sum = t.bias[e];
        for (size_t i = 0; i < width; ++i) sum += t.weight[e * width + i] * x[i];
        logits_[e] = sum;
      }
      odds_.row(logits_.data(), bias.empty() ? nullptr : bias.data(), nullptr, t.slope,
                probabilities + r * config_.router.experts);
    }
  }

 private:
  struct Source {
    LowRankMixer mixer;
    MatrixView projection;         // [rank, hidden]
    const float* shift = nullptr;  // [rank]
  };
  struct Target {
    std::vector<float> weight, bias;  // [experts, rank + units], [experts]
    float slope = 1;
  };
  const Target& target_of(LayerId layer, LayerId target) const {
    return targets_[size_t(layer) * size_t(kLowRankHorizon) + size_t(target - layer - 1)];
  }

  void load(const PredictorContext& context) {
    const TrainedPredictor& trained = *context.trained;
    EF_CHECK(trained.has(kLowRank), ConfigError, "predictor '{}': {} holds none of that kind", kLowRank, trained.file);
    const int64_t hidden = config_.hidden;
    sources_.resize(size_t(layers_));
    targets_.resize(size_t(layers_) * size_t(kLowRankHorizon));
    selection_bias_.resize(size_t(layers_));
    uint64_t bytes = uint64_t(hidden) * sizeof(float);
    // Eight bits are plenty for a guess, and the projection is read whole for every token.
    const Format format = hidden % 32 == 0 ? Format::kQ8_0 : Format::kF32;
    const auto matrix_bytes = [&](int64_t rank) {
      return round_up(uint64_t(rank) * row_bytes(format, hidden), kAlignment);
    };
    for (LayerId l = 0; l < layers_; ++l) {
      if (!load_layer(context.model, trained, l)) continue;
      const int64_t rank = sources_[size_t(l)].mixer.rank;
      bytes += matrix_bytes(rank) + round_up(uint64_t(rank) * sizeof(float), kAlignment);
    }
    memory_ = backend_.allocate(bytes, {Region::kDynamic, "predictor"});
    const auto stream = backend_.make_stream();
    std::byte* at = memory_.data();
    const auto place = [&](const void* from, uint64_t size, uint64_t room) {
      std::byte* const here = at;
      backend_.copy_to_device(here, from, size, *stream);
      stream->synchronize();
      at += room;
      return here;
    };
    for (LayerId l = 0; l < layers_; ++l) {
      Source& source = sources_[size_t(l)];
      const int64_t rank = source.mixer.rank;
      if (rank == 0) continue;
      const auto& projection = trained.at(low_rank_name(l, "projection"), rank, hidden).values;
      const auto& shift = trained.at(low_rank_name(l, "shift"), 1, rank).values;
      std::vector<std::byte> packed(size_t(rank) * row_bytes(format, hidden));
      format_info(format).quantize(projection.data(), packed.data(), rank * hidden);
      source.projection = {format, rank, hidden, place(packed.data(), packed.size(), matrix_bytes(rank))};
      const uint64_t vector = uint64_t(rank) * sizeof(float);
      source.shift = reinterpret_cast<const float*>(place(shift.data(), vector, round_up(vector, kAlignment)));
      parameters_ += projection.size() + shift.size() + source.mixer.mix.size() + source.mixer.bias.size();
    }
    const std::vector<float> ones(static_cast<size_t>(hidden), 1.f);
    ones_ = reinterpret_cast<const float*>(place(ones.data(), ones.size() * sizeof(float), 0));
  }

  // The host's part of one layer; whether the file has it.
  bool load_layer(const Model& model, const TrainedPredictor& trained, LayerId l) {
    const TrainedTensor* mix = trained.find(low_rank_name(l, "mix"));
    if (!mix) return false;
    LowRankMixer& mixer = sources_[size_t(l)].mixer;
    mixer.rank = int(mix->cols), mixer.units = int(mix->rows);
    mixer.mix = mix->values;
    mixer.bias = trained.at(low_rank_name(l, "mix_bias"), 1, mixer.units).values;
    most_rank_ = std::max(most_rank_, mixer.rank);
    most_width_ = std::max(most_width_, mixer.rank + mixer.units);
    const int64_t experts = config_.router.experts;
    for (LayerId t = l + 1; t < layers_ && t - l <= horizon_; ++t) {
      if (!config_.layers[size_t(t)].sparse || !trained.find(head_name(kLowRank, l, t, "weight"))) continue;
      Target& target = targets_[size_t(l) * size_t(kLowRankHorizon) + size_t(t - l - 1)];
      target.weight = trained.at(head_name(kLowRank, l, t, "weight"), experts, mixer.rank + mixer.units).values;
      target.bias = trained.at(head_name(kLowRank, l, t, "bias"), 1, experts + 1).values;
      target.slope = target.bias.back();
      parameters_ += target.weight.size() + target.bias.size();
      selection_bias_[size_t(t)] = read_selection_bias(model, backend_, t);
    }
    return true;
  }

  const Config& config_;
  Backend& backend_;
  const int64_t max_rows_;
  const int horizon_;
  const LayerId layers_;
  RouterOdds odds_;
  Buffer memory_, scratch_;
  const float* ones_ = nullptr;                     // [hidden]
  float *normed_ = nullptr, *projected_ = nullptr;  // [T, hidden], [T, rank]
  int most_rank_ = 0, most_width_ = 0;
  std::vector<Source> sources_;  // by layer
  std::vector<Target> targets_;  // [layer, distance - 1]
  std::vector<std::vector<float>> selection_bias_;
  std::vector<float> host_projected_, mixed_, logits_;
  uint64_t parameters_ = 0;
  // of the last queue()
  LayerId layer_ = 0;
  int64_t rows_ = 0;
  bool is_mixed_ = false;
};

}  // namespace

std::unique_ptr<Predictor> make_low_rank(const PredictorContext& context) {
  return std::make_unique<LowRankPredictor>(context);
}

}  // namespace ef
