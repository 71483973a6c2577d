// Bar: predictors on the bundled model's held-out text, by domain: the plain gate-ahead rule beside an independent
// measurement, and the trained file named on the command line against gate-ahead. With EF_MODELS=DIR the plain rule is
// measured on DIR/demo, the BF16 checkpoint, as well. EF_HELDOUT_TEXT=DIR: other held-out text, DIR/DOMAIN.txt (english
// may be called stories).
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "expertflow/base/errors.h"
#include "expertflow/engine/device.h"
#include "expertflow/engine/predictor_file.h"
#include "expertflow/engine/recall.h"
#include "expertflow/engine/step_recorder.h"
#include "expertflow/engine/text_model.h"
#include "expertflow/predict/low_rank.h"

namespace {

using namespace ef;
namespace fs = std::filesystem;
const fs::path kText = EF_PREDICT_TEXT;
const char* const kDomains[] = {"english", "zh", "code", "docs"};

struct Bench {
  explicit Bench(const fs::path& model) : pool(1) {
    static const Log log;
    auto files = open_model(model);
    auto found = load_tokenizer(files->checkpoint);
    EF_CHECK(found.has_value(), ModelError, "{}: expected a tokenizer, found none", model.string());
    tokenizer = std::move(*found);
    EngineOptions options;
    options.activations = "f32", options.expert_memory = "100%", options.ctx_size = 1024;
    engine = std::make_unique<Engine>(std::move(files), options, log);
    backend = make_backend(DeviceChoice{}, pool, options);
    stream = backend->make_stream();
  }
  PredictorContext context(const TrainedPredictor* trained) {
    return {engine->model(), *backend, 1, int(engine->config().layers.size()) - 1, trained};
  }
  std::vector<TokenId> tokens(const fs::path& file) { return document_tokens(*tokenizer, read_text_file(file)); }

  ThreadPool pool;
  std::optional<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};

// The plain rule on the report's own four windows: mean over layers, by distance.
bool check_report(Bench& bench, const char* what) {
  const auto report = nlohmann::json::parse(read_text_file(fs::path(EF_SOURCE_DIR) / "tests/data/predict/report.json"));
  const auto plain = make_predictor("gate-ahead-plain", bench.context(nullptr));
  Predictor* const one[] = {plain.get()};
  RecallOptions options;
  options.from_start = true;
  const RecallTable table =
      measure_recall(*bench.engine, one, *bench.stream, bench.tokens(kText / "heldout/report.txt"), options)[0];
  bool ok = true;
  for (int s = 1; s <= 5; ++s) {
    const auto expected = report.at(fmt::format("pregate_recall_S{}_top4", s)).get<std::vector<double>>();
    double mean = 0, worst = 0;
    for (size_t l = 0; l < expected.size(); ++l) {
      mean += expected[l] / double(expected.size());
      worst = std::max(
          worst, std::fabs(table.recall_of(table.at(StepPoint::kRouted, LayerId(l), LayerId(l) + s)) - expected[l]));
    }
    const double found = table.recall(StepPoint::kRouted, s);
    ok &= std::fabs(found - mean) <= 0.005;
    fmt::print(
        "{}: plain gate-ahead at distance {}: {:.2f} %, the report {:.2f} ({:+.2f}; single layers within {:.2f})\n",
        what, s, 100 * found, 100 * mean, 100 * (found - mean), 100 * worst);
  }
  return ok;
}

std::string fit_text(const RecallTable& table, int most) {
  std::vector<double> t, y;
  for (int d = 1; d <= most; ++d)
    if (const double r = table.recall(StepPoint::kRouted, d); r >= 0) t.push_back(d), y.push_back(100 * r);
  const DecayFit fit = fit_decay(t, y);
  return fmt::format("{:.1f} exp(-{:.2f} t) + {:.1f}, within {:.1f}", fit.a, fit.b, fit.c, fit.worst);
}

// Hit shares of few candidates, as small predictors are judged by: the likeliest is one of the chosen; the router's
// first choice is the likeliest; it is among the three likeliest.
void print_first(const RecallTable& table, int most) {
  fmt::print("  {:<26}", table.predictor() + ", few");
  for (int d = 1; d <= most; ++d) {
    const RecallCount sum = table.sum(StepPoint::kRouted, d);
    const double cases = std::max(1.0, double(sum.cases)) / 100;
    fmt::print(" {}: {:.1f} {:.1f} {:.1f};", d, double(sum.likeliest) / cases, double(sum.first_1) / cases,
               double(sum.first_3) / cases);
  }
  fmt::print("\n");
}

struct Result {
  bool ok = true;
  double least_gain = 1, least_gain_5 = 1, least_2k = 1, least_first = 1;
  int reach = 0;  ///< of the file's heads, in layers
};
constexpr int kFar = 5;

fs::path held_out(const std::string& domain) {
  const char* other = std::getenv("EF_HELDOUT_TEXT");
  const fs::path folder = other ? fs::path(other) : kText / "heldout", file = folder / (domain + ".txt");
  return domain == "english" && !fs::exists(file) ? folder / "stories.txt" : file;
}

void judge(Bench& bench, const TrainedPredictor& trained, const char* domain, int64_t most, Result& result) {
  std::vector<std::unique_ptr<Predictor>> made;
  std::vector<Predictor*> all;
  for (const char* name : {"gate-ahead-plain", "gate-ahead", "trained", kLowRank}) {
    if (name == std::string_view(kLowRank) && !trained.has(name)) continue;
    made.push_back(make_predictor(name, bench.context(&trained)));
    all.push_back(made.back().get());
  }
  RecallOptions options;
  options.most = most;
  const auto tables = measure_recall(*bench.engine, all, *bench.stream, bench.tokens(held_out(domain)), options);
  const RecallTable &plain = tables[0], &gate = tables[1], &best = tables[2];
  const int layers = plain.layers();
  int reach = 0;  // of heads: beyond them the file falls back on gate-ahead
  for (int d = 1; d < layers; ++d)
    if (trained.find(head_name("hybrid", 0, d, "weight"))) reach = d;
  fmt::print("{:<8} distance:", domain);
  for (int d = 1; d <= reach; ++d) fmt::print(" {:>5}", d);
  const auto line = [&](const char* what, const RecallTable& table, bool twice = false) {
    fmt::print("\n  {:<26}", what);
    for (int d = 1; d <= reach; ++d)
      if (const double r = table.recall(StepPoint::kRouted, d, twice); r >= 0) fmt::print(" {:5.1f}", 100 * r);
  };
  line("gate-ahead-plain", plain), line("gate-ahead", gate), line("trained", best),
      line("trained, 2k candidates", best, true);
  if (tables.size() > 3) line(kLowRank, tables[3]), line("low-rank, 2k candidates", tables[3], true);
  fmt::print("\n");
  for (size_t p = 1; p < tables.size(); ++p) print_first(tables[p], std::min(reach, kLowRankHorizon));
  for (int d = 2; d <= reach; ++d) {
    const double gain = best.recall(StepPoint::kRouted, d) - gate.recall(StepPoint::kRouted, d);
    result.least_gain = std::min(result.least_gain, gain);
    if (d == kFar) result.least_gain_5 = std::min(result.least_gain_5, gain);
  }
  result.reach = reach;
  result.least_2k = std::min(result.least_2k, best.recall(StepPoint::kRouted, 1, true, 3));
  fmt::print("  2k candidates at distance 1, targets 3 to {}: {:.2f} %; before attention:", layers - 1,
             100 * best.recall(StepPoint::kRouted, 1, true, 3));
  for (LayerId l = 0; l < layers; ++l) {
    const double r = best.recall_of(best.at(StepPoint::kLayerInput, l, l));
    if (l < 2) result.least_first = std::min(result.least_first, r);
    fmt::print(" {:.1f}", 100 * r);
  }
  fmt::print("; layers 1 and on from the token's embedding:");
  for (LayerId t = 1; t < layers && trained.find(head_name("pre-attention", 0, t, "weight")); ++t)
    fmt::print(" {:.1f}", 100 * best.recall_of(best.at(StepPoint::kLayerInput, 0, t)));
  fmt::print("\n  fits of a exp(-b t) + c: gate-ahead {}; trained {}\n", fit_text(gate, layers - 1),
             fit_text(best, reach));
}

}  // namespace

int main(int count, char** arguments) try {
  EF_CHECK(count >= 2, ConfigError, "bar_recall: expected FILE [TOKENS], found {} arguments", count - 1);
  const fs::path model = fs::path(EF_SOURCE_DIR) / "models/demo/demo-Q5_K_M.gguf";
  const int64_t most = count > 2 ? std::atoll(arguments[2]) : 2048;
  Bench bench(model);
  bool report = check_report(bench, "Q5_K_M");
  if (const char* models = std::getenv("EF_MODELS")) {
    Bench bf16(fs::path(models) / "demo");
    report &= check_report(bf16, "BF16");
  } else {
    fmt::print("EF_MODELS is not set: the report's own BF16 checkpoint was not measured, only the file made of it\n");
  }
  const PredictorChoice choice = choose_predictor(arguments[1], bench.engine->files());
  Result result;
  for (const char* domain : kDomains) judge(bench, *choice.trained, domain, most, result);
  // Heads that do not reach so far have gained nothing there.
  if (result.reach < kFar) result.least_gain_5 = 0;
  result.ok = report && result.reach >= kFar && result.least_gain > 0 && result.least_gain_5 >= 0.14 &&
              result.least_2k >= 0.97 && result.least_first >= 0.85;
  fmt::print(
      "bar recall: {}: {}, heads of {} layers ahead: plain rule {} the report's; the least over four domains: gain "
      "over "
      "gate-ahead at distance 2 and more {:.1f} points, at 5 {:.1f} of 14; 2k candidates at distance 1 {:.2f} % of 97; "
      "layers 0 and 1 {:.1f} % of 85\n",
      result.ok ? "ok" : "SHORT", fs::path(arguments[1]).filename().string(), result.reach,
      report ? "within 0.5 points of" : "off", 100 * result.least_gain, 100 * result.least_gain_5,
      100 * result.least_2k, 100 * result.least_first);
  return result.ok ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print("bar recall: SHORT: {}\n", error.what());
  return 1;
}
