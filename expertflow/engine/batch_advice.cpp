#include "expertflow/engine/batch_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ef {

namespace {

constexpr int kMostRows = 4096;

std::optional<int> rows_that_fit(const BatchFacts& f) {
  if (f.experts == 0 || f.expert_total == 0 || f.expert_budget >= f.expert_total) return std::nullopt;
  const double share = double(f.expert_budget) / double(f.expert_total);
  int rows = 0;
  while (rows < kMostRows && expected_distinct_experts(f.experts, f.top_k, rows + 1) <= share * f.experts) ++rows;
  return rows;
}

std::string words_of(const BatchAdvice& a, const BatchFacts& f) {
  const std::string kv = fmt::format("the KV cache holds {} sequences of {} tokens", a.kv_sequences, f.sequence_tokens);
  if (!a.expert_sequences)
    return fmt::format("{}, and the fast tier every expert: up to {} sequences at once", kv, a.sequences);
  const double share = 100 * double(f.expert_budget) / double(f.expert_total);
  if (*a.expert_sequences == 0)
    return fmt::format(
        "{}, but the fast tier ({:.0f} % of the experts) not what one token asks for: every step will "
        "copy; more --expert-memory helps, a smaller batch does not",
        kv, share);
  return fmt::format(
      "{}, and the fast tier ({:.0f} % of the experts) what {} tokens at once ask for: {} sequences at "
      "once; each further one makes every step copy more",
      kv, share, *a.expert_sequences, a.sequences);
}

}  // namespace

double expected_distinct_experts(int experts, int top_k, int rows) {
  return experts * (1 - std::pow(1 - double(top_k) / experts, rows));
}

BatchAdvice batch_advice(const BatchFacts& f) {
  BatchAdvice a;
  a.kv_sequences = f.sequence_tokens > 0 ? f.kv_tokens / f.sequence_tokens : 0;
  a.expert_sequences = rows_that_fit(f);
  int64_t most = std::max<int64_t>(1, a.kv_sequences);
  // Where one row's experts do not fit, a batch shares copies: experts say nothing against it.
  if (a.expert_sequences && *a.expert_sequences > 0) most = std::min<int64_t>(most, *a.expert_sequences);
  a.sequences = int(std::min<int64_t>(most, kMostRows));
  a.text = words_of(a, f);
  if (f.parallel > a.sequences) a.text += fmt::format(" (--parallel is {})", f.parallel);
  return a;
}

}  // namespace ef
