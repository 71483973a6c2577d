// Timed runs of an engine in the manner of llama-bench: a prompt of n tokens, n tokens one by one, or both, behind a
// context of `depth` tokens, in one sequence or several; with what the runs had to read and compute, and how fast the
// machine could have done that.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "expertflow/cache/clairvoyant.h"
#include "expertflow/engine/engine.h"
#include "expertflow/engine/expert_metrics.h"
#include "expertflow/measure/probe.h"
#include "expertflow/measure/work.h"

namespace ef {

struct BenchTest {
  int prompt = 0, gen = 0, depth = 0;
  int sequences = 1;  ///< prompts one after the other, then a token of each a step
  int tokens() const { return sequences * (prompt + gen); }  ///< timed ones, of all sequences
  int length() const { return depth + prompt + gen; }        ///< of one
  std::string name() const;  ///< "pp512", "tg128", "pp512+tg128", "tg128 @ d1024", "tg128 x 16"
};

/// One repetition. Counts are of the timed part.
struct BenchSample {
  double prompt_seconds = 0, decode_seconds = 0;
  uint64_t hits = 0, misses = 0, bytes_read = 0, evictions = 0;
  double stall_seconds = 0;
  uint64_t weight_bytes = 0;  ///< weights, keys and values that its steps had to read from memory once each
  double seconds() const { return prompt_seconds + decode_seconds; }
};

/// Some steps of the test with each kernel timed by itself, and the same steps as they were timed whole.
struct BenchProfile {
  StreamProfile work;  ///< of all these steps, longest first
  int steps = 0;
  double step_seconds = 0;        ///< of one step in the timed repetitions
  double kernel_seconds() const;  ///< of one step
  uint64_t kernels() const;       ///< of all these steps
};

struct BenchResult {
  BenchTest test;
  std::vector<BenchSample> samples;
  Operations operations;            ///< of one repetition
  std::optional<BenchSample> cold;  ///< the first repetition, if the engine had not computed this before
  ExpertMetrics metrics;            ///< since the engine was made
  ExpertStats stats;
  double clairvoyant_bytes = 0;  ///< missed by a clairvoyant cache of the same budget, of one repetition (mean)
  std::optional<BenchProfile> profile;
  double mean(double BenchSample::*member) const;
  double mean(uint64_t BenchSample::*member) const;
  std::vector<double> rates() const;  ///< tokens a second, of each repetition
};

/// Mean, standard deviation of the sample (0 for one), median, least, most.
struct Spread {
  double mean = 0, deviation = 0, median = 0, least = 0, most = 0;
};
Spread spread_of(std::vector<double> values);

struct Peaks {
  MemoryPeak memory;
  ComputePeak compute;
  DiskPeak disk;
};

/// Seconds that one repetition takes at least, by what limits it; 0: no bound known.
struct Bounds {
  double memory = 0, compute = 0, disk = 0;
  double clairvoyant = 0;              ///< as disk, of a clairvoyant cache
  double seconds() const;              ///< the largest of the first three
  const char* by() const;              ///< which that is; "none"
  double clairvoyant_seconds() const;  ///< with the clairvoyant cache's bytes instead
};
Bounds bounds_of(const BenchResult& result, const Peaks& peaks);

/// Where tokens come from: a fixed list, gone round when it ends, or random ids by seed.
class TokenStream {
 public:
  TokenStream(int vocab, uint64_t seed) : vocab_(vocab), seed_(seed) {}
  explicit TokenStream(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}
  TokenId at(uint64_t index) const;
  std::vector<TokenId> slice(uint64_t begin, uint64_t count) const;

 private:
  std::vector<TokenId> tokens_;
  int vocab_ = 0;
  uint64_t seed_ = 0;
};

struct BenchOptions {
  int repetitions = 5;
  bool warm_up = true;   ///< one repetition untimed, with tokens of its own
  bool profile = false;  ///< ConfigError where the engine's stream cannot; of a test with both parts, the decoding
  bool cold = false;     ///< the engine has just been made: the repetition before the timed ones shows a cold start
  StepObserver* recorder = nullptr;  ///< sees the timed repetitions
};
/// Repetition r takes sequences * length() tokens of the stream from r * that on (the warm-up is number 0), one
/// sequence after the other. The engine needs room for them and no open sequence; its observer is used. Where the
/// backend's memory is the host's, experts are counted while the clock runs; elsewhere that would take the step apart,
/// so they are counted in a run of repetition 1 that is not timed.
BenchResult run_bench(Engine& engine, const BenchTest& test, const TokenStream& stream, const BenchOptions& options);

}  // namespace ef
