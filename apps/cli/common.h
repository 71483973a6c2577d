// What several commands share: log levels, progress on stderr, sizes as people read them, an engine from options.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "apps/cli/outputs.h"
#include "expertflow/base/log.h"
#include "expertflow/base/options.h"
#include "expertflow/engine/engine.h"
#include "expertflow/engine/trace_recorder.h"

namespace ef::cli {

struct CommonOptions {
  std::string model, config;
  bool verbose = false;
  bool quiet = false;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(model, {"-m,--model", "Hugging Face folder or GGUF file (any shard)"});
    visit(config,
          {"--config", "JSON file with values for flags, {\"expert_cache_size\": \"6GiB\"}; see docs/guide.md"});
    visit(verbose, {"-v,--verbose", "say more on stderr"});
    visit(quiet, {"-q,--quiet", "say only warnings and errors on stderr"});
  }
  std::unique_ptr<Log> make_log() const;
  /// ConfigError if no model was named.
  void check() const;
};

std::string human_bytes(uint64_t bytes);  ///< "1.2 GiB"

/// One line on stderr that is redrawn on a terminal, or printed at every tenth otherwise. Nothing when quiet.
class Progress {
 public:
  /// unit: what done and total count; empty: bytes.
  Progress(std::string what, bool quiet, std::string unit = "");
  ~Progress();
  void operator()(uint64_t done, uint64_t total);

 private:
  std::string amount(uint64_t n) const;
  std::string what_, unit_;
  bool quiet_, terminal_;
  int shown_ = -1;
};

/// Opens, plans, loads; prints the memory plan on the log.
std::unique_ptr<Engine> load_engine(const CommonOptions& common, const EngineOptions& options, const Log& log);

/// The same of files that are open already.
std::unique_ptr<Engine> load_engine(std::unique_ptr<ModelFiles> files, bool quiet, const EngineOptions& options,
                                    const Log& log);

/// As --warmup says, with progress. tokens_otherwise: see Engine::warm_up.
Engine::WarmUp warm_up(Engine& engine, bool quiet, bool tokens_otherwise = false);

/// Where a command records what its routers do.
struct TraceOptions {
  std::string file;
  bool hidden_states = false;

  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(file, {"--record-trace", "write what every router saw and chose to this file, for replay and inspect"});
    visit(hidden_states, {"--record-hidden", "with the inputs of the MoE blocks, for analyses of one's own"});
  }
  /// ConfigError if a flag has no effect.
  void check() const;
};
/// Null if no file was named. The engine's steps are recorded from now on; set_recorder(nullptr) ends that.
std::unique_ptr<TraceRecorder> start_trace(const TraceOptions& options, Engine& engine, const std::string& model);

/// What every command with a model reads, and more: for check_outputs.
std::vector<NamedFile> inputs_of(const CommonOptions& common, const EngineOptions& engine, std::vector<NamedFile> more);

/// DeviceError naming the file if it cannot be written.
void write_text(const std::string& path, std::string_view text);

/// A file that a flag names; ConfigError naming the flag if it cannot be read.
std::string read_named_file(const char* flag, const std::string& path, uint64_t max_bytes = 256u << 20);

/// "1,2,3" as ids; ConfigError naming the field otherwise.
std::vector<TokenId> parse_token_ids(const std::string& text, const char* flag);

/// ConfigError unless 0 (as many as there are) to 4096.
void check_threads(int threads);

}  // namespace ef::cli
