#include <algorithm>
#include <filesystem>
#include <sstream>

#include "apps/cli/commands.h"
#include "apps/cli/common.h"
#include "apps/cli/options_cli11.h"
#include "apps/cli/outputs.h"
#include "expertflow/base/errors.h"
#include "expertflow/engine/device.h"
#include "expertflow/engine/predictor_file.h"
#include "expertflow/engine/prefetch_options.h"
#include "expertflow/engine/text_model.h"
#include "expertflow/engine/train_predictor.h"

namespace ef::cli {

namespace {

struct TrainCommand {
  CommonOptions common;
  EngineOptions engine;
  std::vector<std::string> text, eval_text;
  std::string out, kinds = "hybrid,pre-attention", format = "Q5_0", license;
  int64_t max_tokens = TrainPredictorOptions{}.max_tokens, eval_tokens = 2048;
  bool force = false;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(out, {"-o,--output", "the file to write"});
    visit(kinds, {"--kinds", "what to train: hybrid, pre-attention, linear, low-rank, forest; several with commas"});
    visit(max_tokens, {"--max-tokens", "tokens to record for training, of all texts together"});
    visit(eval_tokens, {"--eval-tokens", "tokens of each text to judge on; 0: do not"});
    visit(format, {"--format", "numbers of the file: F32, F16, Q8_0, Q6_K, Q5_K, Q4_K, Q5_0, Q4_0"});
    visit(license, {"--license", "written to the file"});
    visit(force, {"--force", "replace the file if it is there"});
  }
};

// Layers ahead, at most: --prediction-horizon, which looks at nothing while a predictor is trained; by itself half the
// depth, but no further than an adaptive distance goes.
int horizon_of(const std::string& text, int layers) {
  constexpr int kLeast = 4;
  const int usual = std::clamp(layers / 2, kLeast, StepControllerOptions{}.most);
  const int ahead = parse_horizon(text).value_or(usual);
  EF_CHECK(ahead >= 1, ConfigError, "--prediction-horizon: expected auto or 1 to {}, found \"{}\"", kMaxLayers, text);
  return ahead;
}

TrainPredictorOptions training_options(const TrainCommand& o, int layers) {
  TrainPredictorOptions t;
  t.max_tokens = o.max_tokens;
  t.heads.distance = horizon_of(o.engine.prediction_horizon, layers);
  t.heads.hybrid = t.heads.pre_attention = false;
  std::stringstream list(o.kinds);
  for (std::string kind; std::getline(list, kind, ',');) {
    if (kind == "hybrid")
      t.heads.hybrid = true;
    else if (kind == "linear")
      t.heads.linear = true;
    else if (kind == "pre-attention")
      t.heads.pre_attention = true;
    else if (kind == "low-rank")
      t.heads.low_rank = true;
    else if (kind == "forest")
      t.heads.forest = true;
    else
      fail<ConfigError>("--kinds: expected hybrid, pre-attention, linear, low-rank and forest, found \"{}\"", kind);
  }
  const TrainHeadsOptions& h = t.heads;
  EF_CHECK(h.hybrid || h.linear || h.pre_attention || h.low_rank || h.forest, ConfigError,
           "--kinds: expected at least one, found none");
  return t;
}

NamedText read_text(const char* flag, const std::string& file, const Tokenizer& tokenizer) {
  NamedText text{std::filesystem::path(file).stem().string(), document_tokens(tokenizer, read_named_file(flag, file))};
  EF_CHECK(!text.tokens.empty(), ConfigError, "{} {}: expected documents of more than 200 characters, found none", flag,
           file);
  return text;
}

// On the numbers as the file has them. Returns what did best.
std::string judge(const TrainCommand& o, Engine& engine, int distance, const std::vector<NamedText>& held_out,
                  const Log& log) {
  const TrainedPredictor trained = read_predictor(o.out);
  const int horizon = int(engine.config().layers.size()) - 1;
  // A thread of its own does: each product is short.
  ThreadPool inline_pool(1);
  const auto backend = make_backend(DeviceChoice{}, inline_pool, engine.options());
  const auto stream = backend->make_stream();
  const PredictorContext context{engine.model(), *backend, 1, horizon, &trained};
  std::vector<std::unique_ptr<Predictor>> made;
  for (const PredictorInfo& info : predictors())
    if (!info.trained || info.name == "trained" || trained.has(info.name))
      made.push_back(make_predictor(info.name, context));
  std::vector<Predictor*> all;
  for (const auto& p : made) all.push_back(p.get());
  std::vector<std::string> names;
  std::vector<std::vector<RecallTable>> tables;
  RecallOptions options;
  options.most = o.eval_tokens;
  const int64_t longest = std::min<int64_t>(1024, engine.context_length()), windows = (o.eval_tokens - 1) / longest + 1;
  options.window = (o.eval_tokens - 1) / windows + 1;
  for (const NamedText& text : held_out) {
    Progress progress("judging on " + text.name, o.common.quiet, "tokens");
    names.push_back(text.name);
    tables.push_back(measure_recall(engine, all, *stream, text.tokens, options, [&](uint64_t done) {
      progress(done, uint64_t(std::min<int64_t>(o.eval_tokens, int64_t(text.tokens.size()))));
    }));
  }
  log.info(
      "recall in percent of the routed experts among the k and 2k likeliest, sets that are exact and at least half "
      "right:");
  fmt::print("{}", recall_text(names, tables));
  for (const Predictor* p : all) log.info("{}: {} numbers of its own", p->name(), p->parameters());
  const BestPredictor best = best_predictor(tables, distance);
  log.info("best on held-out text: {}, {:.1f} % of the routed on average 1 to {} layers ahead", best.name,
           100 * best.recall, distance);
  return best.name;
}

int run_train(const TrainCommand& o) {
  namespace fs = std::filesystem;
  o.common.check();
  EF_CHECK(!o.text.empty(), ConfigError, "--text: expected files to train on, found none");
  EF_CHECK(!o.out.empty(), ConfigError, "--output: expected the file to write, found none");
  EF_CHECK(o.max_tokens >= 256, ConfigError, "--max-tokens: expected at least 256, found {}", o.max_tokens);
  EF_CHECK(o.eval_tokens >= 0, ConfigError, "--eval-tokens: expected 0 or more, found {}", o.eval_tokens);
  const FormatInfo* format = find_format(o.format);
  EF_CHECK(format && format->quantize, ConfigError,
           "--format: expected F32, F16, Q8_0, Q6_K, Q5_K, Q4_K, Q5_0 or Q4_0, found \"{}\"", o.format);
  (void)training_options(o, 1);  // what is wrong in any model
  EF_CHECK(o.force || !fs::exists(o.out), ConfigError, "--output {}: the file is there already (--force replaces it)",
           o.out);
  const auto log = o.common.make_log();
  EngineOptions engine_options = o.engine;
  engine_options.prediction_horizon = "0";
  if (engine_options.ctx_size == -1) engine_options.ctx_size = 1024;
  auto files = open_model(o.common.model);
  const TrainPredictorOptions options = training_options(o, int(files->config.layers.size()));
  const auto tokenizer = load_tokenizer(files->checkpoint);
  EF_CHECK(tokenizer.has_value(), ModelError, "{}: training needs a tokenizer, the model brings none", o.common.model);
  std::vector<NamedText> texts, held_out;
  for (const std::string& file : o.text) texts.push_back(read_text("--text", file, *tokenizer));
  for (const std::string& file : o.eval_text) held_out.push_back(read_text("--eval-text", file, *tokenizer));
  if (held_out.empty() && o.eval_tokens > 0) {
    constexpr int64_t kWindow = 1024;
    for (NamedText& text : texts) {
      auto [train, held] = hold_out(text, kWindow);
      text = std::move(train);
      if (!held.tokens.empty()) held_out.push_back(std::move(held));
    }
  }
  const uint64_t bytes =
      uint64_t(o.max_tokens) *
      StepSamples::bytes_a_token(int(files->config.layers.size()), files->config.hidden, files->config.router.experts);
  log->info("up to {} tokens are kept in {} of memory", o.max_tokens, human_bytes(bytes));
  const auto engine = load_engine(o.common, engine_options, *log);
  const auto start = std::chrono::steady_clock::now();
  const auto since = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::unique_ptr<Progress> progress;
  std::string stage;
  TrainedPredictor trained =
      train_predictor(*engine, texts, options, [&](const char* what, uint64_t done, uint64_t total) {
        if (stage != what) {
          stage = what;
          progress = std::make_unique<Progress>(stage, o.common.quiet, stage == "training" ? "heads" : "tokens");
        }
        (*progress)(done, total);
      });
  progress.reset();
  write_predictor(trained, format->format, o.license, o.out);
  log->info("{}: {} after {:.1f} s", o.out, human_bytes(fs::file_size(o.out)), since());
  if (o.eval_tokens == 0 || held_out.empty()) return 0;
  const std::string best = judge(o, *engine, options.heads.distance, held_out, *log);
  if (best != trained.best) {
    trained.best = best;
    write_predictor(trained, format->format, o.license, o.out);
  }
  return 0;
}

}  // namespace

void add_train_predictor(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<TrainCommand>();
  CLI::App* command = app.add_subcommand("train-predictor", "Train what guesses the next layers' experts, from text");
  bind_options(*command, options->common);
  command->add_option("--text", options->text,
                      "text files to train on, one a domain; documents are separated by <|endoftext|>");
  command->add_option("--eval-text", options->eval_text,
                      "text files to judge on; none: a tenth of the others is held out");
  bind_options(*command, *options);
  bind_options(*command, options->engine);
  command->callback([options, &exit_code] {
    std::vector<NamedFile> texts;
    for (const std::string& text : options->text) texts.push_back({"--text", text});
    for (const std::string& text : options->eval_text) texts.push_back({"--eval-text", text});
    EngineOptions engine = options->engine;
    if (engine.predictor == "auto") engine.predictor = "none";  // what is beside the model may be made anew
    check_outputs({{"--output", options->out}}, inputs_of(options->common, engine, texts));
    EF_CHECK(!is_output_stream(options->out), ConfigError, "--output {}: expected the name of a file", options->out);
    exit_code = run_train(*options);
  });
}

}  // namespace ef::cli
