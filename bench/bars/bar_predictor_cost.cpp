// Bar: what a predictor costs beside the step that it predicts for, and how many numbers it holds beside the experts'.
// Costs do not depend on what was learned, so that heads of zeros stand in for trained ones.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "expertflow/base/errors.h"
#include "expertflow/engine/recall.h"
#include "expertflow/engine/sequence.h"
#include "expertflow/engine/step_recorder.h"
#include "expertflow/predict/forest.h"
#include "expertflow/predict/low_rank.h"
#include "expertflow/predict/router_history.h"
#include "expertflow/predict/trained.h"

namespace {

using namespace ef;

uint64_t experts_of(const Config& c) {
  return 3 * uint64_t(c.sparse_layers()) * uint64_t(c.router.experts) * uint64_t(c.hidden) * uint64_t(c.expert_ffn);
}

// A forest of full trees, so that each prediction goes down all of its depth.
TrainedTensor full_forest() {
  TrainedTensor t{0, 4, {}};
  for (int tree = 0; tree < Forest::kTrees; ++tree) {
    const int64_t first = t.rows, inner = (1 << Forest::kDepth) - 1;
    for (int64_t i = 0; i < 2 * inner + 1; ++i) {
      const bool leaf = i >= inner;
      const float feature = leaf ? -1.f : float((i + tree) % int64_t(kForestFeatures));
      t.values.insert(t.values.end(),
                      {feature, leaf ? 0.1f : 0.f, leaf ? 0.f : float(first + 2 * i + 1), i == 0 ? 1.f : 0.f});
      ++t.rows;
    }
  }
  return t;
}

TrainedPredictor zeros(const Config& config, int horizon) {
  TrainedPredictor t;
  t.layers = int(config.layers.size()), t.hidden = config.hidden;
  t.experts = config.router.experts, t.top_k = config.router.top_k;
  const auto fill = [&](const std::string& name, int64_t rows, int64_t cols) {
    t.tensors[name] = {rows, cols, std::vector<float>(size_t(rows * cols))};
  };
  const auto head = [&](const char* kind, LayerId l, LayerId target) {
    fill(head_name(kind, l, target, "weight"), t.experts, t.hidden);
    fill(head_name(kind, l, target, "history"), t.experts, RouterHistory::kParts * t.experts);
    fill(head_name(kind, l, target, "bias"), 1, t.experts + 1);
  };
  for (LayerId l = 0; l < t.layers; ++l) {
    if (!config.layers[size_t(l)].sparse) continue;
    head("pre-attention", l, l);
    for (LayerId target = 1; l == 0 && target < t.layers && target <= std::min(horizon, kEmbeddingReach); ++target)
      if (config.layers[size_t(target)].sparse) head("pre-attention", l, target);
    for (LayerId target = l + 1; target < t.layers && target - l <= horizon; ++target)
      if (config.layers[size_t(target)].sparse) head("hybrid", l, target);
  }
  fill("history.mean", t.layers, t.experts);
  int sources = 0, targets = 0;
  for (LayerId l = 0; l + 1 < t.layers; ++l) {
    const int ahead = std::min(kLowRankHorizon, t.layers - 1 - l);
    ++sources, targets += ahead;
  }
  const uint64_t experts = experts_of(config);
  const LowRankSize size = low_rank_size(t.hidden, t.experts, sources, targets, most_low_rank_numbers(experts));
  for (LayerId l = 0; l + 1 < t.layers; ++l) {
    if (!config.layers[size_t(l)].sparse) continue;
    fill(low_rank_name(l, "projection"), size.rank, t.hidden);
    fill(low_rank_name(l, "shift"), 1, size.rank);
    fill(low_rank_name(l, "mix"), size.units, size.rank);
    fill(low_rank_name(l, "mix_bias"), 1, size.units);
    for (LayerId target = l + 1; target < t.layers && target - l <= kLowRankHorizon; ++target) {
      fill(head_name(kLowRank, l, target, "weight"), t.experts, size.rank + size.units);
      fill(head_name(kLowRank, l, target, "bias"), 1, t.experts + 1);
    }
  }
  t.tensors["forest.nodes"] = full_forest();
  return t;
}

// One token through all looks, every target that is covered: what a step would ask at most.
void predict_all(Predictor& predictor, const Config& config, const RecordedRows& rows, Stream& stream, float* out) {
  const int32_t sequence = 0;
  predictor.begin_step({rows.tokens, {&sequence, 1}, rows.positions});
  const LayerId layers = LayerId(config.layers.size());
  const auto look = [&](const StepView& view) {
    predictor.observe(view);
    LayerId first = view.layer, last = layers - 1;
    while (first < layers && !predictor.covers(view.point, view.layer, first)) ++first;
    while (last > first && !predictor.covers(view.point, view.layer, last)) --last;
    if (first >= layers) return;
    predictor.queue(view, first, last, stream);
    stream.synchronize();
    for (LayerId t = first; t <= last; ++t)
      if (predictor.covers(view.point, view.layer, t)) predictor.finish(t, out);
  };
  for (LayerId l = 0; l < layers; ++l) {
    const RecordedRows::Layer& layer = rows.layers[size_t(l)];
    StepView view;
    view.point = StepPoint::kLayerInput, view.layer = l, view.rows = 1, view.residual = layer.input.data();
    look(view);
    if (!config.layers[size_t(l)].sparse) continue;
    view.point = StepPoint::kRouted, view.residual = layer.routed.data(), view.x = layer.x.data();
    view.logits = layer.logits.data(), view.chosen = layer.chosen;
    look(view);
  }
}

}  // namespace

int main(int count, char** arguments) try {
  EF_CHECK(count >= 2, ConfigError, "bar_predictor_cost: expected MODEL [TOKENS [HORIZON]], found none");
  const int tokens = count > 2 ? std::atoi(arguments[2]) : 24;
  const int horizon = count > 3 ? std::atoi(arguments[3]) : 6;
  static const Log log;
  EngineOptions options;
  options.expert_memory = "100%", options.ctx_size = 256;
  Engine engine(open_model(arguments[1]), options, log);
  const Config& c = engine.config();
  const TrainedPredictor trained = zeros(c, horizon);
  using Clock = std::chrono::steady_clock;
  const auto seconds_of = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  double step = 0;
  struct Arm {
    const char* name;
    std::unique_ptr<Predictor> predictor;
    double seconds = 0;
  };
  std::vector<Arm> arms;
  const PredictorContext context{engine.model(), engine.backend(), 1, horizon, &trained};
  for (const char* name : {"hybrid", "pre-attention", kLowRank, "forest"})
    arms.push_back({name, make_predictor(name, context)});
  std::vector<float> out(static_cast<size_t>(c.router.experts));
  StepRecorder recorder(c);
  engine.set_observer(&recorder);
  Sequence sequence(engine, 256);
  constexpr int kWarm = 4;
  for (int i = 0; i < kWarm + tokens; ++i) {
    const TokenId id = TokenId((100 + 37 * i) % c.vocab);
    const auto begin = Clock::now();
    sequence.feed(std::span(&id, 1));
    if (i >= kWarm) step += seconds_of(Clock::now() - begin);
    for (Arm& arm : arms) {
      const auto start = Clock::now();
      predict_all(*arm.predictor, c, recorder.recorded, engine.stream(), out.data());
      if (i >= kWarm) arm.seconds += seconds_of(Clock::now() - start);
    }
  }
  engine.set_observer(nullptr);
  const double experts = double(experts_of(c));
  double share = 0, numbers = 0, low_rank_share = 0, low_rank_numbers = 0;
  double forest_share = 0, forest_numbers = 0, forest_us = 0;
  fmt::print("a step of one token: {:.2f} ms; experts: {:.3g} numbers\n", 1e3 * step / tokens, experts);
  for (const Arm& arm : arms) {
    fmt::print("{:<14} every layer, up to {} layers ahead: {:.3f} ms a token, {:.2f} % of the step; {:.3g} numbers\n",
               arm.name, horizon, 1e3 * arm.seconds / tokens, 100 * arm.seconds / step,
               double(arm.predictor->parameters()));
    const std::string_view name = arm.name;
    if (name == kLowRank) {
      low_rank_share = arm.seconds / step, low_rank_numbers = double(arm.predictor->parameters());
    } else if (name == "forest") {
      forest_share = arm.seconds / step, forest_numbers = double(arm.predictor->parameters());
      // A prediction: one target of one look, for all experts.
      const double layers = c.sparse_layers(), far = std::min<double>(horizon, layers - 1);
      forest_us = 1e6 * arm.seconds / tokens / (layers * far - far * (far + 1) / 2);
    } else {
      share += arm.seconds / step, numbers += double(arm.predictor->parameters());
    }
  }
  fmt::print(
      "forest: {:.1f} microseconds for a prediction of a layer, {:.2f} an expert (its routers' products included)\n",
      forest_us, forest_us / c.router.experts);
  // The ratio of numbers is asked for where experts are more than a billion numbers.
  const bool large = experts > 1e9;
  const auto thousandths = [&](double n) { return 1e3 * n / experts; };
  const double most = std::max({share, low_rank_share, forest_share});
  const bool ok = most <= 0.035 && (!large || thousandths(std::max({numbers, low_rank_numbers, forest_numbers})) <= 1);
  fmt::print(
      "bar predictor-cost: {}: heads {:.2f} % of a step, low-rank {:.2f} %, forest {:.2f} % (3.5 allowed of each); "
      "{:.2f}, "
      "{:.2f} and {:.2f} thousandths of the experts' {:.3g} numbers (1 allowed{}); forest {:.1f} us a layer\n",
      ok ? "ok" : "SHORT", 100 * share, 100 * low_rank_share, 100 * forest_share, thousandths(numbers),
      thousandths(low_rank_numbers), thousandths(forest_numbers), experts, large ? "" : ", from a billion on",
      forest_us);
  return ok ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print("bar predictor-cost: SHORT: {}\n", error.what());
  return 1;
}
