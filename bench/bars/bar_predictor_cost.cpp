// Bar: what a predictor costs beside the step that it predicts for, and how many numbers it holds beside the experts'.
// Costs do not depend on what was learned, so that heads of zeros stand in for trained ones.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include "expertflow/base/errors.h"
#include "expertflow/engine/recall.h"
#include "expertflow/engine/sequence.h"
#include "expertflow/engine/step_recorder.h"
#include "expertflow/predict/router_history.h"
#include "expertflow/predict/trained.h"

namespace {

using namespace ef;

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
    for (LayerId target = l + 1; target < t.layers && target - l <= horizon; ++target)
      if (config.layers[size_t(target)].sparse) head("hybrid", l, target);
  }
  fill("history.mean", t.layers, t.experts);
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
  for (const char* name : {"hybrid", "pre-attention"}) arms.push_back({name, make_predictor(name, context)});
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
  const double experts = 3.0 * c.sparse_layers() * c.router.experts * double(c.hidden) * c.expert_ffn;
  double share = 0, numbers = 0;
  fmt::print("a step of one token: {:.2f} ms; experts: {:.3g} numbers\n", 1e3 * step / tokens, experts);
  for (const Arm& arm : arms) {
    fmt::print("{:<14} every layer, up to {} layers ahead: {:.3f} ms a token, {:.2f} % of the step; {:.3g} numbers\n",
               arm.name, horizon, 1e3 * arm.seconds / tokens, 100 * arm.seconds / step,
               double(arm.predictor->parameters()));
    share += arm.seconds / step, numbers += double(arm.predictor->parameters());
  }
  // The ratio of numbers is asked for where experts are more than a billion numbers.
  const bool large = experts > 1e9;
  const bool ok = share <= 0.035 && (!large || numbers <= experts / 1000);
  fmt::print(
      "bar predictor-cost: {}: both together {:.2f} % of a step (3.5 allowed), {:.2f} thousandths of the experts' "
      "{:.3g} "
      "numbers (1 allowed{})\n",
      ok ? "ok" : "SHORT", 100 * share, 1e3 * numbers / experts, experts, large ? "" : ", from a billion on");
  return ok ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print("bar predictor-cost: SHORT: {}\n", error.what());
  return 1;
}
