#include "expertflow/engine/perplexity.h"

#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"
#include "expertflow/engine/sequence.h"
#include "expertflow/text/sampler.h"

namespace ef {

double PerplexityResult::perplexity() const { return std::exp(cross_entropy()); }

double PerplexityResult::standard_error() const {
  if (scored < 2) return 0;
  const double mean = cross_entropy();
  const double variance = std::max(0.0, nll_square_sum / double(scored) - mean * mean);
  return perplexity() * std::sqrt(variance / double(scored - 1));
}

int64_t perplexity_logit_rows(int64_t vocab, int64_t ubatch) {
  return std::clamp<int64_t>((64 << 20) / (vocab * 4), 16, std::max<int64_t>(16, ubatch));
}

namespace {

double negative_log_likelihood(std::span<const float> logits, TokenId token) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float l : logits) sum += std::exp(double(l) - double(largest));
  return std::log(sum) - (double(logits[size_t(token)]) - double(largest));
}

// Feeds one window; logits of row i score token i + 1.
void score_window(Engine& engine, std::span<const TokenId> window, int64_t first_scored, PerplexityResult& result) {
  const int64_t vocab = engine.config().vocab;
  const EngineOptions& o = engine.options();
  const int64_t rows = std::min<int64_t>(o.ubatch, o.max_logit_rows > 0 ? o.max_logit_rows : o.parallel);
  Sequence sequence(engine, int64_t(window.size()));
  const int64_t inputs = int64_t(window.size()) - 1;
  for (int64_t begin = 0; begin < inputs;) {
    // Rows before the first that scores anything need no logits, and go in full chunks.
    const bool scores = begin + 1 >= first_scored;
    const int64_t end = scores ? std::min(inputs, begin + rows)
                               : std::min({inputs, begin + int64_t(engine.options().ubatch),
                                           std::max<int64_t>(begin + 1, first_scored - 1)});
    Batch batch;
    batch.pieces.push_back({sequence.id(), window.subspan(size_t(begin), size_t(end - begin)),
                            scores ? Batch::Piece::Logits::kAll : Batch::Piece::Logits::kNone});
    const auto logits = engine.step(batch);
    if (scores)
      for (int64_t i = begin; i < end; ++i) {
        const auto row = logits.subspan(size_t((i - begin) * vocab), size_t(vocab));
        check_logits(row);
        const double nll = negative_log_likelihood(row, window[size_t(i + 1)]);
        result.nll_sum += nll;
        result.nll_square_sum += nll * nll;
        ++result.scored;
      }
    begin = end;
  }
}

}  // namespace

PerplexityResult perplexity(Engine& engine, std::span<const TokenId> tokens, const PerplexityOptions& options,
                            const std::function<bool(const PerplexityResult&, int64_t)>& after_window) {
  const int64_t n = int64_t(tokens.size()), window = options.window;
  const int64_t stride = options.stride > 0 ? options.stride : window;
  const int64_t first = options.first_scored >= 0 ? options.first_scored : window / 2 + 1;
  EF_CHECK(window >= 2 && first < window, ConfigError,
           "perplexity: expected a window of at least 2 and a first scored token inside, found {} and {}", window,
           first);
  EF_CHECK(window <= engine.context_length(), ConfigError,
           "perplexity: a window of {} tokens does not fit the context of {}", window, engine.context_length());
  EF_CHECK(n >= window, RequestError, "perplexity: expected a text of at least one window of {} tokens, found {}",
           window, n);
  int64_t windows = (n - window) / stride + 1;
  if (options.max_windows > 0) windows = std::min(windows, options.max_windows);
  PerplexityResult result;
  for (int64_t w = 0; w < windows; ++w) {
    score_window(engine, tokens.subspan(size_t(w * stride), size_t(window)), std::max<int64_t>(1, first), result);
    ++result.windows;
    if (after_window && !after_window(result, windows)) break;
  }
  return result;
}

}  // namespace ef
