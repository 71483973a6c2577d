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

/// Indices into `waiting` (oldest first), ascending, of at most `count` tokens, and of all that have been put off
/// `aging_threshold` times. Tokens of which nothing is known go before those that need a copy. Greedy: each choice is
/// the token that adds the fewest copies to those that the chosen ones need already; among equals the longest deferred,
/// then the oldest.
std::vector<size_t> choose_tokens(std::span<const WaitingToken> waiting, size_t count, int aging_threshold,
                                  const RoutingForecast& forecast);

}  // namespace ef
