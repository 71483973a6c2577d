#include "expertflow/engine/trace_predictions.h"

#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/engine/sequence.h"

namespace ef {
namespace {

// Asks a predictor at every look of a step.
class Asking final : public StepObserver {
 public:
  using Keep = std::function<void(int64_t row, LayerId look, LayerId target, const float* probabilities)>;
  Asking(Engine& engine, Predictor& predictor, int horizon, Keep keep)
      : engine_(engine), predictor_(predictor), horizon_(horizon), keep_(std::move(keep)) {}

  void on_step(std::span<const TokenId> tokens, std::span<const int32_t> sequences,
               std::span<const int32_t> positions) override {
    predictor_.begin_step({tokens, sequences, positions});
  }
  bool wants_residual() const override { return true; }
  void on_residual(LayerId layer, bool routed, int64_t rows, const float* residual) override {
    residual_ = residual;
    if (routed) return;
    StepView view;
    view.point = StepPoint::kLayerInput, view.layer = layer, view.rows = rows, view.residual = residual;
    predictor_.observe(view);
    // Later layers' inputs come after the router before them, which is where a replay looks.
    if (layer == 0) ask(view, -1);
  }
  void on_routing(LayerId layer, const float* x, const float* logits, const RoutingView& routing) override {
    StepView view;
    view.layer = layer, view.rows = routing.tokens;
    view.residual = residual_, view.x = x, view.logits = logits, view.routing = routing;
    view.chosen = {routing.ids, size_t(routing.tokens * routing.top_k)};
    predictor_.observe(view);
    ask(view, layer);
  }

 private:
  void ask(const StepView& view, LayerId look) {
    const Config& config = engine_.config();
    probabilities_.resize(size_t(view.rows) * size_t(config.router.experts));
    for (LayerId target = look + 1; target <= look + horizon_ && size_t(target) < config.layers.size(); ++target) {
      if (!config.layers[size_t(target)].sparse || !predictor_.covers(view.point, view.layer, target)) continue;
      predictor_.predict(view, target, engine_.stream(), probabilities_.data());
      for (int64_t row = 0; row < view.rows; ++row)
        keep_(row, look, target, probabilities_.data() + row * config.router.experts);
    }
  }

  Engine& engine_;
  Predictor& predictor_;
  const int horizon_;
  Keep keep_;
  const float* residual_ = nullptr;
  std::vector<float> probabilities_;
};

void check_same_model(const Config& config, const TraceHeader& header) {
  EF_CHECK(config.layers.size() == header.layers.size() && config.router.top_k == header.top_k, ConfigError,
           "--model: the trace has {} layers and top-{}, the model {} and top-{}", header.layers.size(), header.top_k,
           config.layers.size(), config.router.top_k);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const int experts = config.layers[i].sparse ? config.router.experts : 0;
    EF_CHECK(header.layers[i].experts == experts, ConfigError,
             "--model: layer {} of the trace has {} experts, the model's {}", i, header.layers[i].experts, experts);
  }
}

struct RequestTokens {
  std::vector<TokenId> tokens;
  std::vector<size_t> rows;  // of the trace
};

}  // namespace

TracePredictions::TracePredictions(Engine& engine, Predictor& predictor, const Trace& trace, int horizon)
    : layers_(int(trace.header.layers.size())), horizon_(horizon), experts_(engine.config().router.experts) {
  EF_DCHECK(horizon >= 1);
  check_same_model(engine.config(), trace.header);
  std::map<uint64_t, RequestTokens> requests;
  size_t rows = 0;
  for (const TraceStep& step : trace.steps) {
    first_row_.push_back(rows);
    for (const TraceRow& row : step.rows) {
      RequestTokens& request = requests[row.request];
      EF_CHECK(size_t(row.position) == request.tokens.size(), ConfigError,
               "trace: request {}: expected position {}, found {}", row.request, request.tokens.size(), row.position);
      request.tokens.push_back(row.token);
      request.rows.push_back(rows++);
    }
  }
  table_.resize(place(rows, -1, 0));
  const RequestTokens* request = nullptr;
  int64_t done = 0;
  Asking asking(engine, predictor, horizon, [&](int64_t row, LayerId look, LayerId target, const float* p) {
    uint8_t* to = table_.data() + place(request->rows[size_t(done + row)], look, target);
    for (int e = 0; e < experts_; ++e) to[e] = uint8_t(std::lround(255 * std::clamp(p[e], 0.f, 1.f)));
  });
  engine.set_observer(&asking);
  const int64_t chunk = engine.options().ubatch;
  for (const auto& [number, tokens] : requests) {
    request = &tokens;
    Sequence sequence(engine, int64_t(tokens.tokens.size()));
    for (done = 0; done < int64_t(tokens.tokens.size()); done += chunk) {
      const auto left = std::min<int64_t>(chunk, int64_t(tokens.tokens.size()) - done);
      sequence.feed_silently(std::span(tokens.tokens).subspan(size_t(done), size_t(left)));
    }
  }
  engine.set_observer(nullptr);
}

class TableForecast final : public Forecast {
 public:
  TableForecast(const TracePredictions& all, const Workload& workload) : all_(all), workload_(workload) {}
  void predict(size_t step, LayerId layer, LayerId target, std::span<float> p) override {
    std::fill(p.begin(), p.end(), 0.f);
    if (target - layer > all_.horizon_) return;
    const WorkloadStep& at = workload_.steps[step];
    for (size_t row = 0; row < at.rows; ++row) {
      const uint8_t* said =
          all_.table_.data() + all_.place(all_.first_row_[at.trace_step] + at.first_row + row, layer, target);
      for (size_t e = 0; e < p.size(); ++e) p[e] = 1 - (1 - p[e]) * (1 - float(said[e]) / 255.f);
    }
  }

 private:
  const TracePredictions& all_;
  const Workload& workload_;
};

std::unique_ptr<Forecast> TracePredictions::forecast(const Workload& workload) const {
  return std::make_unique<TableForecast>(*this, workload);
}

}  // namespace ef
