#include "apps/cli/common.h"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <filesystem>

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "expertflow/base/output_file.h"
#include "expertflow/engine/predictor_file.h"

namespace ef::cli {

std::unique_ptr<Log> CommonOptions::make_log() const {
  return std::make_unique<Log>(verbose ? LogLevel::kDebug : quiet ? LogLevel::kWarning : LogLevel::kInfo, nullptr);
}

void CommonOptions::check() const {
  EF_CHECK(!model.empty(), ConfigError, "--model: expected a model, found none (see --help)");
}

std::string human_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = double(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

Progress::Progress(std::string what, bool quiet, std::string unit)
    : what_(std::move(what)), unit_(std::move(unit)), quiet_(quiet), terminal_(isatty(STDERR_FILENO)) {}

std::string Progress::amount(uint64_t n) const {
  return unit_.empty() ? human_bytes(n) : fmt::format("{} {}", n, unit_);
}

Progress::~Progress() {
  if (terminal_ && shown_ >= 0) std::fputc('\n', stderr);
}

void Progress::operator()(uint64_t done, uint64_t total) {
  if (quiet_ || total == 0) return;
  const int percent = int(done * 100 / total);
  const int step = terminal_ ? 1 : 10;
  if (percent / step == shown_ / step && shown_ >= 0) return;
  shown_ = percent;
  // fputs, not fmt::print: a closed or full stderr must not end the work.
  const std::string line =
      terminal_ ? fmt::format("\r{} {:3d} % [{:<40}]", what_, percent, std::string(size_t(percent) * 40 / 100, '#'))
                : fmt::format("{} {} % ({} of {})\n", what_, percent, amount(done), amount(total));
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

std::unique_ptr<Engine> load_engine(const CommonOptions& common, const EngineOptions& options, const Log& log) {
  return load_engine(open_model(common.model), common.quiet, options, log);
}

std::unique_ptr<Engine> load_engine(std::unique_ptr<ModelFiles> files, bool quiet, const EngineOptions& options,
                                    const Log& log) {
  auto progress = std::make_shared<Progress>("loading", quiet);
  auto engine = std::make_unique<Engine>(std::move(files), options, log,
                                         [progress](uint64_t done, uint64_t total) { (*progress)(done, total); });
  progress.reset();
  const MemoryPlan& plan = engine->plan();
  for (const std::string& note : engine->config().notes) log.warn("{}", note);
  log.info("{}: {} layers, {} experts a layer, top-{}; {}", engine->config().arch, engine->config().layers.size(),
           engine->config().router.experts, engine->config().router.top_k, engine->backend().description());
  log.info("memory: {}, other weights {}, KV cache {} for {} tokens, scratch {}", plan.explanation,
           human_bytes(plan.resident_bytes), human_bytes(plan.kv_bytes), engine->context_length(),
           human_bytes(plan.scratch_bytes));
  return engine;
}

Engine::WarmUp warm_up(Engine& engine, bool quiet, bool tokens_otherwise) {
  const bool tokens = engine.options().warmup == "tokens";
  Progress progress("warming up", quiet, tokens ? "tokens" : "");
  return engine.warm_up([&](uint64_t done, uint64_t total) { progress(done, total); }, tokens_otherwise);
}

void TraceOptions::check() const {
  EF_CHECK(!hidden_states || !file.empty(), ConfigError, "--record-hidden: has an effect only with --record-trace");
}

std::unique_ptr<TraceRecorder> start_trace(const TraceOptions& options, Engine& engine, const std::string& model) {
  if (options.file.empty()) return nullptr;
  static const SteadyClock clock;
  auto recorder = std::make_unique<TraceRecorder>(options.file, engine.files(), model, options.hidden_states, clock,
                                                  [&engine] { return engine.stall_seconds(); });
  engine.set_recorder(recorder.get());
  return recorder;
}

std::vector<NamedFile> inputs_of(const CommonOptions& common, const EngineOptions& engine,
                                 std::vector<NamedFile> more) {
  for (const NamedFile& file : {NamedFile{"--model", common.model}, {"--config", common.config}}) more.push_back(file);
  more.push_back(
      {"--predictor", engine.predictor == "auto" ? predictor_beside(common.model).string() : engine.predictor});
  if (engine.expert_profile != "auto" && engine.expert_profile != "off")
    more.push_back({"--expert-profile", engine.expert_profile});
  return more;
}

void write_text(const std::string& path, std::string_view text) {
  OutputFile out(path);
  out.write(0, std::as_bytes(std::span(text)));
  out.complete(text.size());
  out.publish();
}

std::string read_named_file(const char* flag, const std::string& path, uint64_t max_bytes) {
  try {
    return read_text_file(path, max_bytes);
  } catch (const ModelError& error) {
    fail<ConfigError>("{}: {}", flag, error.what());
  }
}

std::vector<TokenId> parse_token_ids(const std::string& text, const char* flag) {
  std::vector<TokenId> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    TokenId id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    EF_CHECK(error == std::errc() && (next == end || *next == ','), ConfigError,
             "{}: expected token ids separated by commas, found \"{}\"", flag, text);
    ids.push_back(id);
    at = next == end ? end : next + 1;
  }
  EF_CHECK(!ids.empty(), ConfigError, "{}: expected at least one token id", flag);
  return ids;
}

void check_threads(int threads) {
  constexpr int kMost = 4096;
  EF_CHECK(threads >= 0 && threads <= kMost, ConfigError, "--threads: expected 0 to {}, found {}", kMost, threads);
}

}  // namespace ef::cli
