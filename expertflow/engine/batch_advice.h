// How many sequences are worth computing at once: as many as the KV cache holds, and as whose experts the fast tier
// holds together. Arithmetic on a plan; no measurement.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace ef {

struct BatchFacts {
  int experts = 0, top_k = 0;                    ///< of a MoE layer; 0: a dense model
  uint64_t expert_budget = 0, expert_total = 0;  ///< bytes of the fast tier, and of all routed experts
  int64_t kv_tokens = 0;                         ///< that the KV cache holds, all sequences together
  int64_t sequence_tokens = 0;                   ///< of one sequence, prompt and answer
  int parallel = 1;                              ///< that was asked for
};

struct BatchAdvice {
  int64_t kv_sequences = 0;  ///< whole sequences that the KV cache holds at once
  /// Rows of a decoding step whose expected distinct experts, all layers together, fit the fast tier; 0: not even
  /// those of one; nothing: every expert fits.
  std::optional<int> expert_sequences;
  int sequences = 1;  ///< to compute at once: the smaller of both, at least 1
  std::string text;   ///< one line for people
};

/// Distinct experts of a layer that `rows` rows ask for if every expert is equally likely, rows independent:
/// E (1 - (1 - k/E)^rows). Routers that prefer some experts ask for fewer.
double expected_distinct_experts(int experts, int top_k, int rows);

BatchAdvice batch_advice(const BatchFacts& facts);

}  // namespace ef
