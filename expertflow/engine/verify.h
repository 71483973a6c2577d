// Proves on a model that its tokens depend on nothing but the prompt: not on the budget, the batch, or the chunking;
// and compares them with the float32 reference ops.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "expertflow/engine/engine.h"

namespace ef {

struct VerifyOptions {
  EngineOptions engine;                       ///< parallel is raised to what the checks need; budgets are their own
  std::vector<std::vector<TokenId>> prompts;  ///< at least 4; make_prompts() gives seeded ones
  int tokens = 32;                            ///< greedy tokens a prompt
  bool reference = true;                      ///< also run the float32 reference ops
  /// Called for every engine and budget before its runs: tests put in faults that must be found. May be empty.
  std::function<void(Engine&)> before_runs;
};

/// Another order of summation may change the distribution of the next token by this much on average, in nats: what
/// logits off by a hundredth of their spread do.
inline constexpr double kMaxArithmeticDivergence = 1e-3;
/// Rounding activations may change the distribution of the next token by this much on average.
inline constexpr double kMaxRoundingDivergence = 0.01;

struct VerifyCheck {
  std::string name;  ///< "budget 50 % (1.2 GiB), batch 4, chunks of 7"
  bool passed = false;
  int64_t tokens = 0, equal_tokens = 0;
  double max_logit_difference = 0;  ///< against the first run; 0 means bit-identical
  double divergence = 0;            ///< mean KL divergence in nats, where arithmetic is another
  double hit_rate = 1;
  std::string detail;  ///< what differed first
};

struct VerifyReport {
  std::vector<VerifyCheck> checks;
  bool passed() const;
};

/// Runs all checks; each is reported as it ends.
VerifyReport verify(const std::filesystem::path& model, const VerifyOptions& options, const Log& log,
                    const std::function<void(const VerifyCheck&)>& on_check = {});

/// Deterministic prompts of different lengths drawn from the vocabulary, for models without a tokenizer.
std::vector<std::vector<TokenId>> make_prompts(int vocab, int count, uint64_t seed);

}  // namespace ef
