// Which of the waiting tokens go into a step: those that the experts in the fast tier cover best; the rest waits.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "expertflow/base/ids.h"

namespace ef {

/// What is known about the experts that tokens will ask for.
class RoutingForecast {
 public:
  virtual ~RoutingForecast() = default;
  /// Experts that the sequence's next token likely asks for; empty: nothing is known. Valid until the next step.
  virtual std::span<const ExpertKey> likely(int32_t sequence) const = 0;
  /// Whether using it costs no copy now.
  virtual bool near(ExpertKey key) const = 0;
};

struct WaitingToken {
  int32_t sequence = -1;
  int deferred = 0;  ///< steps by which it has been put off already
};

struct TokenChoice {
  size_t count = 0;         ///< tokens that the step is to take
  size_t most = 0;          ///< tokens that it can take
  size_t later = 0;         ///< tokens that later steps take at least
  size_t window = 0;        ///< only among this many that have waited longest; 0: those go, without looking
  int aging_threshold = 4;  ///< steps by which a token is put off at most
};

/// Indices into `waiting` (oldest first), ascending, of `count` tokens; more, up to `most`, where more have been put
/// off as often as the threshold allows. Greedy: each choice is the token that adds the fewest copies to those that the
/// chosen ones need already; among equals the longest deferred, then the oldest. Tokens of which nothing is known go
/// before those that need a copy. The threshold is looked ahead for: of n tokens that may be put off k times more, n -
/// k * later go now, whatever they need; so none is put off beyond it unless more wait than later * (threshold + 1).
std::vector<size_t> choose_tokens(std::span<const WaitingToken> waiting, const TokenChoice& choice,
                                  const RoutingForecast* forecast);

}  // namespace ef
