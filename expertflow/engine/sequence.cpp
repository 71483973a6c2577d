#include "expertflow/engine/sequence.h"

#include <algorithm>

namespace ef {

Batch Sequence::feed_beginning(std::span<const TokenId> tokens, int chunk) {
  const size_t step = size_t(chunk > 0 ? std::min(chunk, engine_.options().ubatch) : engine_.options().ubatch);
  while (tokens.size() > step) {
    Batch batch;
    batch.pieces.push_back({id_, tokens.first(step), Batch::Piece::Logits::kNone});
    (void)engine_.step(batch);
    tokens = tokens.subspan(step);
  }
  Batch last;
  last.pieces.push_back({id_, tokens, Batch::Piece::Logits::kLast});
  return last;
}

std::span<const float> Sequence::feed(std::span<const TokenId> tokens, int chunk) {
  if (tokens.empty()) return {};
  return engine_.step(feed_beginning(tokens, chunk));
}

void Sequence::feed_silently(std::span<const TokenId> tokens) {
  if (tokens.empty()) return;
  Batch last = feed_beginning(tokens, 0);
  last.pieces.front().logits = Batch::Piece::Logits::kNone;
  (void)engine_.step(last);
}

TopLogits Sequence::feed_top(std::span<const TokenId> tokens, int top) {
  if (tokens.empty()) return {};
  return engine_.step_top(feed_beginning(tokens, 0), top);
}

TokenId argmax(std::span<const float> logits) {
  return TokenId(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace ef
