// Bar: what is served by default against the best setting without expert-aware choice of tokens, and the choice against
// taking turns where a step does not take every token; on the bundled model with a quarter of its experts in memory, as
// fast as the machine reads, and with a slow disk. Closed loop: each client sends its next prompt when its answer has
// come. Settings take turns, so that a machine that is busy is so for all of them.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <map>

#include "expertflow/base/io.h"
#include "expertflow/engine/engine_loop.h"
#include "expertflow/engine/text_model.h"

namespace ef {
namespace {

struct Setting {
  const char* name;
  int parallel;  ///< slots: requests that are computed at once
  int window, batch;
  bool chooses() const { return window > 0 && batch > 0; }
};

struct Figures {
  double tokens_per_second = 0, bytes_per_token = 0, deferred = 0;
  int longest_deferral = 0;
};

constexpr int kThreshold = 4;

class Run {
 public:
  Run(EngineLoop& loop, const std::vector<TokenId>& text, int clients, int tokens, int rounds)
      : loop_(loop), text_(text), tokens_(tokens), rounds_(rounds) {
    open_ = clients;
    for (int c = 0; c < clients; ++c) next(c, 0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return open_ == 0; });
  }
  uint64_t generated() const { return generated_; }

 private:
  void next(int client, int round) {
    constexpr size_t kPrompt = 24;
    CompletionRequest r;
    const size_t at = (size_t(client) * 977 + size_t(round) * 331) % (text_.size() - kPrompt);
    r.prompt.assign(text_.begin() + long(at), text_.begin() + long(at + kPrompt));
    r.max_tokens = tokens_;
    r.ignore_eos = true;
    r.sampler.temperature = 0;
    loop_.submit({std::move(r)}, {[this, client, round](CompletionEvent&& event) {
                   generated_ += event.tokens.size();
                   if (!event.last()) return;
                   if (event.error) std::terminate();  // a bar does not go on without an answer
                   if (round + 1 < rounds_) return next(client, round + 1);
                   const std::lock_guard lock(mutex_);
                   if (--open_ == 0) done_.notify_all();
                 }});
  }
  EngineLoop& loop_;
  const std::vector<TokenId>& text_;
  int tokens_, rounds_, open_ = 0;
  uint64_t generated_ = 0;
  std::mutex mutex_;
  std::condition_variable done_;
};

Figures measure(const std::string& model, const Setting& s, const char* io_limit, int clients,
                const std::vector<TokenId>& text, int rounds) {
  static const Log quiet(LogLevel::kWarning, nullptr);
  EngineOptions o;
  o.expert_memory = "25%";
  o.io_limit = io_limit;
  o.parallel = s.parallel;
  o.ctx_size = int64_t(128) * s.parallel;
  Engine engine(open_model(model), o, quiet);
  LoopOptions loop_options;
  loop_options.max_queue = 1000;
  loop_options.scheduler.no_prefix_cache = true;
  loop_options.scheduler.token_schedule_window = s.window;
  loop_options.scheduler.token_schedule_batch = s.batch;
  loop_options.scheduler.aging_threshold = kThreshold;
  EngineLoop loop(engine, nullptr, loop_options, quiet);
  constexpr int kTokens = 24;
  Run(loop, text, std::min(clients, 8), 8, 1);  // warm
  const uint64_t before = loop.snapshot().experts.bytes_read;
  const SteadyClock clock;
  const Duration start = clock.now();
  const Run run(loop, text, clients, kTokens, rounds);
  const double took = seconds(clock.now() - start);
  const EngineLoop::Snapshot end = loop.snapshot();
  Figures f;
  f.tokens_per_second = double(run.generated()) / took;
  f.bytes_per_token = double(end.experts.bytes_read - before) / double(run.generated());
  f.deferred =
      end.scheduler.ready_tokens ? double(end.scheduler.deferred_tokens) / double(end.scheduler.ready_tokens) : 0;
  f.longest_deferral = end.scheduler.longest_deferral;
  return f;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

struct Cell {
  int clients;
  const char* io_limit;
};

// Prints a line for each setting; false where one falls short.
bool run_cell(const std::string& model, const Cell& cell, const std::vector<TokenId>& text, std::string& summary) {
  const int clients = cell.clients, rounds = clients == 16 ? 2 : 1;
  const int window = 64;
  const SchedulerOptions served;
  std::vector<Setting> settings{{"default", clients, served.token_schedule_window, served.token_schedule_batch},
                                {"half the slots, no choice", clients / 2, 0, 0},
                                {"steps of half, in turn", clients, 0, clients / 2},
                                {"steps of half, chosen", clients, window, clients / 2},
                                {"steps of a quarter, in turn", clients, 0, clients / 4},
                                {"steps of a quarter, chosen", clients, window, clients / 4}};
  std::vector<std::vector<double>> speed(settings.size()), bytes(settings.size());
  std::vector<Figures> last(settings.size());
  bool good = true;
  for (int r = 0; r < number("REPETITIONS", 3); ++r)
    for (size_t i = 0; i < settings.size(); ++i) {
      last[i] = measure(model, settings[i], cell.io_limit, clients, text, rounds);
      speed[i].push_back(last[i].tokens_per_second);
      bytes[i].push_back(last[i].bytes_per_token);
      if (last[i].longest_deferral > kThreshold) good = false;
    }
  double plain = 0;
  for (size_t i = 0; i < settings.size(); ++i) {
    if (!settings[i].chooses()) plain = std::max(plain, median(speed[i]));
    fmt::print("| {} | {} | {} | {:.1f} | {:.0f} | {:.0f} % | {} |\n", clients, cell.io_limit, settings[i].name,
               median(speed[i]), median(bytes[i]) / 1e3, 100 * last[i].deferred, last[i].longest_deferral);
  }
  std::fflush(stdout);
  // The default is among them: it must not be slower than the best other one.
  const double ratio = median(speed[0]) / plain, half = median(speed[3]) / median(speed[2]),
               quarter = median(speed[5]) / median(speed[4]);
  summary += fmt::format(
      "; {} clients, limit {}: default {:.2f} x the best without choice, chosen {:.2f} and {:.2f} x in turn", clients,
      cell.io_limit, ratio, half, quarter);
  constexpr double kLeast = 0.98;
  return good && ratio >= kLeast;
}

int run_bar(const std::string& model) {
  const auto files = open_model(model);
  const Tokenizer tokenizer = *load_tokenizer(files->checkpoint);
  const auto text_file = read_text_file("docs/guide.md", 1 << 20);
  const std::vector<TokenId> text = tokenizer.encode(text_file);
  bool good = true;
  std::string summary;
  fmt::print("| clients | disk | setting | tok/s | KB of experts a token | put off | steps at most |\n");
  fmt::print("| ---: | --- | --- | ---: | ---: | ---: | ---: |\n");
  for (const Cell& cell : {Cell{16, "none"}, Cell{48, "none"}, Cell{16, "200MB"}, Cell{48, "200MB"}})
    if (!run_cell(model, cell, text, summary)) good = false;
  fmt::print("scheduling: {}, no deferral beyond {} steps{}\n", good ? "ok" : "SHORT", kThreshold, summary);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace ef

int main(int argc, char** argv) {
  try {
    return ef::run_bar(argc > 1 ? argv[1] : "models/demo/demo-Q5_K_M.gguf");
  } catch (const std::exception& error) {
    fmt::print(stderr, "bar_scheduling: {}\n", error.what());
    return 1;
  }
}
