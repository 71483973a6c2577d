#include "expertflow/engine/sequence.h"

#include <algorithm>

namespace ef {

std::span<const float> Sequence::feed(std::span<const TokenId> tokens, int chunk) {
  const size_t step = size_t(chunk > 0 ? std::min(chunk, engine_.options().ubatch) : engine_.options().ubatch);
  std::span<const float> logits;
  while (!tokens.empty()) {
    const size_t n = std::min(step, tokens.size());
    const bool last = n == tokens.size();
    Batch batch;
    batch.pieces.push_back({id_, tokens.first(n), last ? Batch::Piece::Logits::kLast : Batch::Piece::Logits::kNone});
    logits = engine_.step(batch);
    tokens = tokens.subspan(n);
  }
  return logits;
}

TokenId argmax(std::span<const float> logits) {
  return TokenId(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace ef
