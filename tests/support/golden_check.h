// Runs a fixture through the engine and compares with its golden outputs. Used by the golden tests and by the bar.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "expertflow/engine/engine.h"
#include "tests/support/golden.h"

namespace ef::testing {

struct Fixture {
  std::string name;              ///< "mixtral", or "gguf/mixtral"
  std::filesystem::path model;   ///< folder or GGUF
  std::filesystem::path golden;  ///< golden.safetensors
  double tolerance = 1e-4;       ///< on logits, float32 (tied embeddings: 1e-3)
  /// Only the logits apply where rope depends on length (dynamic, longrope): the golden experts and greedy tokens come
  /// from recomputing each prefix from scratch, which rotates earlier tokens anew.
  bool logits_only = false;
};
/// Every checkpoint of the archive, Hugging Face folders first.
std::vector<Fixture> all_fixtures();

struct FixtureReport {
  double max_logit_error = 0;
  double max_logit = 0;        ///< largest magnitude of the golden ones
  double max_equal_error = 0;  ///< as max_logit_error, of rows before the first whose experts are others
  int64_t rows = 0, equal_rows = 0;
  int64_t expert_rows = 0, wrong_expert_rows = 0;
  int64_t greedy_tokens = 0, wrong_greedy_tokens = 0;
  bool pass(const Fixture& f) const {
    return max_logit_error <= f.tolerance && wrong_expert_rows == 0 && wrong_greedy_tokens == 0;
  }
  std::string text() const;
};

/// expert_memory: a budget ("100%", "min"), or "resident" for every expert in memory without a cache.
/// activations "f32" for the tolerances above; "q8" rounds to 8 bits what meets weights of 8 bits and fewer.
FixtureReport check_fixture(const Fixture& fixture, const std::string& expert_memory, const std::string& isa = "auto",
                            const std::string& activations = "f32", const std::string& device = "cpu",
                            bool batch_invariant = true);

/// Greedy continuation of `count` tokens after a prompt, fed in chunks of `chunk` tokens (0: at once).
std::vector<TokenId> greedy_tokens(Engine& engine, const std::vector<TokenId>& prompt, int count, int chunk = 0);

}  // namespace ef::testing
