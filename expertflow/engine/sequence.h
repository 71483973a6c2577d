// One open sequence of an engine: closes itself, and feeds prompts in chunks that the engine takes.
#pragma once
#include <span>
#include <vector>

#include "expertflow/engine/engine.h"

namespace ef {

class Sequence {
 public:
  /// rope_length: tokens that the sequence may reach (see KvCache::open).
  Sequence(Engine& engine, int64_t rope_length) : engine_(engine), id_(engine.kv().open(rope_length)) {}
  ~Sequence() { engine_.kv().close(id_); }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  SequenceId id() const { return id_; }
  int64_t length() const { return engine_.kv().length(id_); }

  /// Feeds tokens in chunks of at most chunk rows (0: the engine's ubatch); logits of the last one, valid until the
  /// next step.
  std::span<const float> feed(std::span<const TokenId> tokens, int chunk = 0);
  /// The same without any logits.
  void feed_silently(std::span<const TokenId> tokens);
  /// The same with the largest logits alone (Engine::step_top).
  TopLogits feed_top(std::span<const TokenId> tokens, int top);

 private:
  // All but the last chunk, without logits; the last one.
  Batch feed_beginning(std::span<const TokenId> tokens, int chunk);
  Engine& engine_;
  SequenceId id_;
};

/// Token with the largest logit; ties: the lowest id.
TokenId argmax(std::span<const float> logits);

}  // namespace ef
