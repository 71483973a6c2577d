#include "expertflow/engine/train_predictor.h"

#include <fmt/format.h>

#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/engine/fingerprint.h"
#include "expertflow/predict/low_rank.h"

namespace ef {

TrainedPredictor train_predictor(Engine& engine, const std::vector<NamedText>& texts,
                                 const TrainPredictorOptions& options,
                                 const std::function<void(const char*, uint64_t, uint64_t)>& progress) {
  const Config& c = engine.config();
  EF_CHECK(training_available(), ConfigError,
           "train-predictor: this build was made without Eigen (Debian: libeigen3-dev)");
  EF_CHECK(engine.backend().memory_is_host(), ConfigError, "device: training records on a cpu, found {}",
           engine.backend().name());
  EF_CHECK(c.sparse_layers() > 0, ConfigError, "train-predictor: the model has no layer with experts");
  const StepSamples samples = record_samples(
      engine, texts, options.max_tokens, [&](uint64_t done, uint64_t total) { progress("recording", done, total); });
  std::vector<HostRouter> routers(c.layers.size());
  for (size_t l = 0; l < c.layers.size(); ++l)
    if (c.layers[l].sparse) routers[l] = read_host_router(engine.model(), engine.backend(), LayerId(l));
  TrainedPredictor trained;
  trained.file = "the trained predictor";
  trained.fingerprint = model_fingerprint(engine.files());
  trained.layers = int(c.layers.size()), trained.hidden = c.hidden;
  trained.experts = c.router.experts, trained.top_k = c.router.top_k;
  trained.best = "trained";  // until it has been judged
  ThreadPool pool(engine.options().threads);
  TrainHeadsOptions heads = options.heads;
  const uint64_t numbers =
      3 * uint64_t(c.sparse_layers()) * uint64_t(c.router.experts) * uint64_t(c.hidden) * uint64_t(c.expert_ffn);
  heads.most_low_rank_numbers = most_low_rank_numbers(numbers);
  train_heads(
      samples, c.router, routers, heads, pool, [&](size_t done, size_t total) { progress("training", done, total); },
      trained);
  return trained;
}

std::pair<NamedText, NamedText> hold_out(const NamedText& text, int64_t window) {
  constexpr int64_t kEvery = 10;
  std::pair<NamedText, NamedText> parts{{text.name, {}}, {text.name, {}}};
  const int64_t n = int64_t(text.tokens.size());
  const int64_t piece = std::max<int64_t>(1, std::min(window, n / kEvery));
  for (int64_t at = 0, w = 0; at < n; at += piece, ++w) {
    std::vector<TokenId>& to = (w % kEvery == kEvery - 1 ? parts.second : parts.first).tokens;
    to.insert(to.end(), text.tokens.begin() + at, text.tokens.begin() + std::min(n, at + piece));
  }
  return parts;
}

BestPredictor best_predictor(const std::vector<std::vector<RecallTable>>& tables, int distance) {
  BestPredictor best;
  for (size_t p = 0; p < tables.front().size(); ++p) {
    double sum = 0;
    for (const auto& of_text : tables)
      for (int d = 1; d <= distance; ++d) sum += std::max(0., of_text[p].recall(StepPoint::kRouted, d));
    const double recall = sum / double(tables.size()) / distance;
    const std::string& name = tables.front()[p].predictor();
    if (recall > best.recall || best.name.empty() || (recall == best.recall && name == "trained"))
      best = {name, recall};
  }
  return best;
}

std::string recall_text(const std::vector<std::string>& texts, const std::vector<std::vector<RecallTable>>& tables) {
  std::string out;
  const size_t predictors = tables.front().size();
  const auto row = [&](StepPoint point, int distance, size_t p, std::string_view what) {
    const RecallTable& first = tables.front()[p];
    if (first.recall(point, distance) < 0) return;
    std::string line = fmt::format("{:<18} {:>8} ", first.predictor(), what);
    for (const auto& of_text : tables) {
      const RecallCount sum = of_text[p].sum(point, distance);
      const double cases = std::max(1.0, double(sum.cases));
      line += fmt::format("  {:5.1f} {:5.1f} {:5.1f} {:5.1f}", 100 * of_text[p].recall(point, distance),
                          100 * of_text[p].recall(point, distance, true), 100 * double(sum.exact) / cases,
                          100 * double(sum.half) / cases);
    }
    out += line + "\n";
  };
  out += fmt::format("{:<18} {:>8} ", "predictor", "distance");
  for (const std::string& text : texts) out += fmt::format("  {:<23}", text);
  out += "\n" + std::string(28, ' ');
  for (size_t i = 0; i < texts.size(); ++i) out += "    @k   @2k exact  half ";
  out += "\n";
  const int layers = tables.front().front().layers();
  for (size_t p = 0; p < predictors; ++p)
    for (int d = 0; d < layers; ++d) row(StepPoint::kRouted, d, p, fmt::format("{}", d));
  for (size_t p = 0; p < predictors; ++p)
    for (int d = 0; d < layers; ++d) row(StepPoint::kLayerInput, d, p, fmt::format("pre {}", d));
  return out;
}

}  // namespace ef
