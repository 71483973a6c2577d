// Perplexity of token streams: exp of the mean negative log likelihood of the scored tokens.
#pragma once
#include <functional>
#include <span>

#include "expertflow/engine/engine.h"

namespace ef {

struct PerplexityOptions {
  int64_t window = 512;  ///< tokens fed at once, each window on its own (no overlap)
  int64_t stride = 0;    ///< distance between window starts; 0: window
  int64_t first_scored =
      -1;  ///< tokens of a window before this index are context only; -1: half of the window (as llama.cpp)
  int64_t max_windows = 0;  ///< 0: all whole windows
};

struct PerplexityResult {
  double nll_sum = 0;  ///< natural log
  double nll_square_sum = 0;
  int64_t scored = 0, windows = 0;
  double cross_entropy() const { return scored ? nll_sum / double(scored) : 0; }
  double perplexity() const;
  double standard_error() const;  ///< of the perplexity
};

/// Scores tokens [first_scored, window) of every whole window. RequestError if the stream is shorter than one window,
/// or a logit is not finite.
/// after_window(result so far, windows in all) may be empty; returning false ends early.
PerplexityResult perplexity(Engine& engine, std::span<const TokenId> tokens, const PerplexityOptions& options,
                            const std::function<bool(const PerplexityResult&, int64_t)>& after_window = {});

/// Rows whose logits fit about 64 MiB: engines for perplexity set EngineOptions::max_logit_rows to it.
int64_t perplexity_logit_rows(int64_t vocab, int64_t ubatch);

}  // namespace ef
