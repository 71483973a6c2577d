// What bench prints: one report, as a markdown table, JSON or CSV.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "expertflow/measure/bench.h"

namespace ef::cli {

/// The revision that this binary was built from ("-dirty" if the tree was changed), or "unknown".
const char* build_commit();

/// One engine: what it was asked to be, and what it became.
struct BenchSetup {
  int threads = 0, ubatch = 0;
  std::string isa, expert_memory, cache_type;
  std::string device;  ///< "cpu", "cuda:0"
  uint64_t budget_bytes = 0, expert_bytes = 0;
  double setup_seconds = 0;        ///< from opening the files to the first step
  double first_token_seconds = 0;  ///< of the first step, one token, nothing in the fast tier
  Engine::WarmUp warm_up;          ///< before the first step, if it was asked for
  double cached_share = -1;        ///< of the model's files, in the page cache before the setup
};

struct BenchRow {
  BenchSetup setup;
  Peaks peaks;
  BenchResult result;
};

struct BenchReport {
  std::string command, model, architecture, tokens_from;
  uint64_t file_bytes = 0, resident_bytes = 0, expert_bytes_per_token = 0;
  int repetitions = 0;
  bool warm_up = true;
  MachineFacts machine;
  std::string device;             ///< in words; empty: the machine's processors
  std::vector<std::string> isas;  ///< that this processor supports
  std::vector<TokenId> stream;    ///< the tokens that the longest test used, warm-up first
  std::vector<BenchRow> rows;
};

nlohmann::ordered_json bench_json(const BenchReport& report);
std::string bench_markdown(const BenchReport& report);
std::string bench_csv(const BenchReport& report);

}  // namespace ef::cli
