#include "expertflow/replay/report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <thread>

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"
#include "apps/cli/outputs.h"
#include "expertflow/base/errors.h"
#include "expertflow/cache/policy.h"
#include "expertflow/engine/fingerprint.h"
#include "expertflow/engine/predictor_file.h"
#include "expertflow/engine/prefetch_options.h"
#include "expertflow/engine/trace_predictions.h"

namespace ef::cli {

namespace {

struct ReplayCommand {
  std::vector<std::string> traces;
  std::string policies = "next-use", predictors = "none", distances = "1", gains = "0.2", budgets = "40%",
              bandwidths = "1";
  double latency_us = 0, layer_time_us = 0, before_router = 0.4;
  int engines = 1, most_distance = 8, most_candidates = 0;
  double least_probability = 0.25, pool_share = 0.25;
  bool ignore_link = false, advise_only = false, without_scores = false, split_rows = false, quiet = false;
  int64_t max_tokens = 0, expert_bytes = 0;
  std::string link_changes, output = "md", svg, model, governor = "none", layer_wise;
  int threads = 0;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(traces, {"--trace", "trace file that --record-trace wrote (repeat)"});
    visit(policies,
          {"--policy", "eviction policies, separated by commas, belady (which knows the trace) among them, or 'all'"});
    visit(predictors,
          {"--predictor",
           "who says what comes next: none, oracle, previous-token, frequency, transitions, or with --model "
           "what run's --predictor takes, a file of train-predictor among it; separated by commas"});
    visit(model,
          {"-m,--model", "the trace's model, for predictors that need one: its tokens are run through it again"});
    visit(distances, {"--distance", "layers that are looked ahead, separated by commas; 'auto' adapts"});
    visit(budgets, {"--expert-memory", "budgets as shares of all experts: 15%,25%,40%"});
    visit(bandwidths, {"--bandwidth", "of the link, GB/s, separated by commas"});
    visit(latency_us, {"--latency", "of each copy, microseconds"});
    visit(engines, {"--copy-engines", "copies at once, which share the bandwidth"});
    visit(layer_time_us, {"--layer-time", "microseconds that a layer computes; 0: as recorded"});
    visit(before_router, {"--before-router", "share of a layer's compute that passes before its router has chosen"});
    visit(most_distance, {"--max-distance", "largest distance that 'auto' may choose"});
    visit(gains, {"--diversity-gain",
                  "how much the expected experts grow in batches more diverse than usual, separated by commas; below "
                  "0: shrink"});
    visit(least_probability, {"--min-probability", "of an expert that is copied ahead"});
    visit(most_candidates,
          {"--prediction-topk", "experts of a layer that are named for a row at most; 0: twice those chosen"});
    visit(layer_wise, {"--layer-wise-config", "candidates by layer, as a run takes them; see docs/guide.md"});
    visit(pool_share, {"--ahead-share", "of the budget, for experts that no layer has asked for yet"});
    visit(ignore_link, {"--ahead-unbounded", "copy ahead more than the link can carry until the layer's turn"});
    visit(
        governor,
        {"--governor",
         "who decides what is copied ahead: none (all that is likely, as the link can carry it), or the governor of a "
         "run, as its --async-prefetch says: on, auto"});
    visit(advise_only, {"--advise-only", "tell policies what is predicted, copy nothing ahead"});
    visit(without_scores, {"--without-scores", "keep from policies what routers say of experts nearly chosen"});
    visit(link_changes, {"--bandwidth-changes", "TOKEN:GB/s,...: the link's bandwidth from that token on"});
    visit(split_rows, {"--split-rows", "each row of a step as a step of its own, as decoding would have been"});
    visit(max_tokens, {"--max-tokens", "of each trace; 0: all"});
    visit(expert_bytes, {"--expert-bytes", "bytes of an expert, of every layer; 0: as recorded"});
    visit(output, {"-o,--output", "md, json or csv"});
    visit(svg, {"--svg", "also draw bytes, waiting and distance by residency into this file"});
    visit(threads, {"-t,--threads", "replays at once; 0: all processors"});
    visit(quiet, {"-q,--quiet", "no progress on stderr"});
  }
};

std::vector<std::string> split(const std::string& text, const char* flag) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    EF_CHECK(!parts.back().empty(), ConfigError, "{}: expected a list without empty members, found \"{}\"", flag, text);
    begin = end + 1;
  }
  return parts;
}

double number(const std::string& text, const char* flag, double least, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  EF_CHECK(error == std::errc() && end == text.data() + text.size() && value >= least && value <= most, ConfigError,
           "{}: expected a number from {} to {}, found \"{}\"", flag, least, most, text);
  return value;
}

double whole(const std::string& text, const char* flag, double least, double most) {
  const double value = number(text, flag, least, most);
  EF_CHECK(value == std::floor(value), ConfigError, "{}: expected a whole number, found \"{}\"", flag, text);
  return value;
}

std::vector<std::pair<uint64_t, double>> link_changes(const std::string& text) {
  const char* flag = "--bandwidth-changes";
  std::vector<std::pair<uint64_t, double>> changes;
  if (text.empty()) return changes;
  for (const std::string& part : split(text, flag)) {
    const size_t colon = part.find(':');
    EF_CHECK(colon != std::string::npos, ConfigError, "{}: expected TOKEN:GB/s, found \"{}\"", flag, part);
    const auto token = uint64_t(whole(part.substr(0, colon), flag, 0, 1e15));
    EF_CHECK(changes.empty() || token > changes.back().first, ConfigError,
             "{}: expected ascending tokens, found \"{}\"", flag, text);
    changes.push_back({token, 1e9 * number(part.substr(colon + 1), flag, 1e-6, 1e6)});
  }
  return changes;
}

SweepOptions sweep_options(const ReplayCommand& o) {
  SweepOptions s;
  s.policies.clear();
  if (o.policies == "all") {
    for (const PolicyInfo& info : replay_policies()) s.policies.emplace_back(info.name);
  } else {
    s.policies = split(o.policies, "--policy");
  }
  const std::vector<LayerEvent> nothing;
  for (const std::string& name : s.policies)
    make_policy(name, {1, nullptr, 0, &nothing});  // refuses unknown names early
  s.predictors.clear();
  s.predictors = split(o.predictors, "--predictor");
  s.distances.clear();
  for (const std::string& part : split(o.distances, "--distance"))
    s.distances.push_back(part == "auto" ? 0 : int(whole(part, "--distance", 1, 256)));
  s.diversity_gains.clear();
  for (const std::string& part : split(o.gains, "--diversity-gain"))
    s.diversity_gains.push_back(number(part, "--diversity-gain", -1, 1));
  s.shares.clear();
  for (std::string part : split(o.budgets, "--expert-memory")) {
    EF_CHECK(part.back() == '%', ConfigError, "--expert-memory: expected a share such as 40%, found \"{}\"", part);
    part.pop_back();
    s.shares.push_back(number(part, "--expert-memory", 0.001, 100) / 100);
  }
  s.bandwidths.clear();
  for (const std::string& part : split(o.bandwidths, "--bandwidth"))
    s.bandwidths.push_back(1e9 * number(part, "--bandwidth", 1e-6, 1e6));
  const auto range = [](const char* flag, double value, double least, double most) {
    EF_CHECK(value >= least && value <= most, ConfigError, "{}: expected {} to {}, found {}", flag, least, most, value);
  };
  range("--latency", o.latency_us, 0, 1e9);
  range("--layer-time", o.layer_time_us, 0, 1e9);
  range("--min-probability", o.least_probability, 0, 1);
  range("--ahead-share", o.pool_share, 0, 1);
  range("--before-router", o.before_router, 0, 0.99);
  range("--max-distance", o.most_distance, 1, 256);
  range("--copy-engines", o.engines, 1, 64);
  range("--max-tokens", double(o.max_tokens), 0, 1e15);
  range("--expert-bytes", double(o.expert_bytes), 0, 4e9);
  ReplayOptions& base = s.base;
  base.link.latency = Duration(int64_t(o.latency_us * 1e3));
  base.link.engines = o.engines;
  base.before_router = o.before_router;
  base.most_distance = o.most_distance;
  base.least_probability = float(o.least_probability);
  base.pool_share = o.pool_share;
  base.within_link = !o.ignore_link;
  base.advise_only = o.advise_only, base.scores = !o.without_scores;
  EF_CHECK(o.governor == "none" || o.governor == "on" || o.governor == "auto", ConfigError,
           "--governor: expected none, on or auto, found \"{}\"", o.governor);
  if (o.governor != "none") base.governor = parse_prefetch_mode(o.governor);
  base.link_changes = link_changes(o.link_changes);
  check_threads(o.threads);
  s.threads = o.threads > 0 ? o.threads : int(std::max(1u, std::thread::hardware_concurrency()));
  return s;
}

// As a run of the traces' model would name them.
CandidateRules candidates_of(const ReplayCommand& o, const std::vector<NamedWorkload>& workloads) {
  const TraceHeader& first = workloads.front().workload.trace->header;
  EngineOptions options;
  options.prediction_topk = o.most_candidates;
  options.layer_wise_config = o.layer_wise;
  Config config;
  config.layers.resize(first.layers.size());
  config.router.top_k = first.top_k;
  for (const auto& layer : first.layers) config.router.experts = std::max(config.router.experts, layer.experts);
  for (const NamedWorkload& w : workloads) {
    const TraceHeader& other = w.workload.trace->header;
    EF_CHECK(other.top_k == first.top_k && other.layers.size() == first.layers.size(), ConfigError,
             "--trace: expected traces of one model, found {} layers and top-{} after {} and top-{}",
             other.layers.size(), other.top_k, first.layers.size(), first.top_k);
  }
  return candidate_rules(options, config);
}

bool from_trace(const std::string& predictor) {
  for (const ForecastInfo& info : forecasts())
    if (info.name == predictor) return true;
  return false;
}

// What predictors of the model say of each trace, by trace and name.
using Predictions = std::map<std::pair<std::string, std::string>, std::unique_ptr<TracePredictions>>;

Predictions ask_model(const ReplayCommand& o, const SweepOptions& options,
                      const std::vector<NamedWorkload>& workloads) {
  Predictions all;
  std::vector<std::string> names;
  for (const std::string& name : options.predictors)
    if (!from_trace(name)) names.push_back(name);
  if (names.empty()) return all;
  EF_CHECK(!o.model.empty(), ConfigError, "--predictor {}: needs the model (--model); a trace alone has {}", names[0],
           [] {
             std::string known;
             for (const ForecastInfo& info : forecasts()) known += (known.empty() ? "" : ", ") + std::string(info.name);
             return known;
           }());
  int horizon = 1;
  for (const int distance : options.distances)
    horizon = std::max(horizon, distance == 0 ? options.base.most_distance : distance);
  static const Log log;
  EngineOptions engine_options;
  engine_options.all_resident = true;
  for (const NamedWorkload& w : workloads)
    for (const TraceStep& step : w.workload.trace->steps)
      for (const TraceRow& row : step.rows)
        engine_options.ctx_size = std::max<int64_t>(engine_options.ctx_size, int64_t(row.position) + 1);
  Engine engine(open_model(o.model), engine_options, log);
  const std::string fingerprint = model_fingerprint(engine.files());
  for (const NamedWorkload& w : workloads)
    if (w.workload.trace->header.fingerprint != fingerprint)
      log.warn("--model: trace {} was recorded with another model: what predictors say of this one may not hold",
               w.name);
  for (const std::string& name : names) {
    const PredictorChoice choice = choose_predictor(name, engine.files());
    const auto predictor = make_predictor(
        choice.name, {engine.model(), engine.backend(), engine_options.ubatch, horizon, choice.trained.get()});
    for (const NamedWorkload& w : workloads)
      all[{w.name, name}] = std::make_unique<TracePredictions>(engine, *predictor, *w.workload.trace, horizon);
  }
  return all;
}

int run_replay(const ReplayCommand& o) {
  EF_CHECK(!o.traces.empty(), ConfigError, "--trace: expected a trace file, found none");
  EF_CHECK(o.output == "md" || o.output == "json" || o.output == "csv", ConfigError,
           "--output: expected md, json or csv, found \"{}\"", o.output);
  SweepOptions options = sweep_options(o);
  WorkloadOptions workload_options;
  workload_options.split_rows = o.split_rows;
  workload_options.max_tokens = uint64_t(o.max_tokens);
  workload_options.layer_seconds = o.layer_time_us * 1e-6;
  workload_options.expert_bytes = uint64_t(o.expert_bytes);
  // An adaptive distance goes by the inputs' diversity too.
  const bool adaptive = std::find(options.distances.begin(), options.distances.end(), 0) != options.distances.end();
  std::vector<NamedWorkload> workloads;
  for (const std::string& path : o.traces) {
    auto trace = std::make_shared<Trace>(read_trace(path, adaptive));
    workloads.push_back(
        {std::filesystem::path(path).stem().string(), make_workload(std::move(trace), workload_options)});
  }
  options.base.candidates = candidates_of(o, workloads);
  const Predictions predictions = ask_model(o, options, workloads);
  std::vector<SweepRow> rows;
  {
    Progress progress("replaying", o.quiet, "runs");
    rows = sweep(
        workloads, options,
        [&](std::string_view name, const NamedWorkload& w) {
          const auto it = predictions.find({w.name, std::string(name)});
          return it != predictions.end() ? it->second->forecast(w.workload) : make_forecast(name, w.workload);
        },
        [&](uint64_t done, uint64_t all) { progress(done, all); });
  }
  if (o.output == "md") fmt::print("{}{}", replay_table(rows), governor_text(rows));
  if (o.output == "json") fmt::print("{}\n", replay_json(rows).dump(1));
  if (o.output == "csv") fmt::print("{}", replay_csv(rows));
  if (!o.svg.empty()) write_text(o.svg, replay_svg(rows));
  return 0;
}

}  // namespace

void add_replay(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ReplayCommand>();
  CLI::App* command =
      app.add_subcommand("replay", "Recorded traces under a virtual clock: policies, predictors, distances, budgets");
  bind_options(*command, *options);
  command->callback([options, &exit_code] {
    std::vector<NamedFile> inputs = {{"--model", options->model}};
    for (const std::string& trace : options->traces) inputs.push_back({"--trace", trace});
    for (const std::string& name : split(options->predictors, "--predictor")) inputs.push_back({"--predictor", name});
    check_outputs({{"--svg", options->svg}}, inputs);
    exit_code = run_replay(*options);
  });
}

}  // namespace ef::cli
