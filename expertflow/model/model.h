// A loaded model: config and resident weights, immutable after load. Everything that changes (KV, scratch, experts) is
// passed in.
#pragma once
#include <span>
#include <vector>

#include "expertflow/backend/backend.h"
#include "expertflow/model/config.h"
#include "expertflow/model/experts.h"
#include "expertflow/model/kv_cache.h"
#include "expertflow/model/rope.h"
#include "expertflow/model/state.h"
#include "expertflow/model/weights.h"

namespace ef {

struct Model {
  Config config;
  Weights weights;
};

/// A ragged batch: rows of several sequences, prefill chunks and decode rows mixed. Rows of one sequence are contiguous
/// and in order; positions continue the sequence's length.
struct Batch {
  struct Piece {
    SequenceId sequence;
    std::span<const TokenId> tokens;
    /// Which of the piece's rows want logits: the last only, all, or none.
    enum class Logits : uint8_t { kNone, kLast, kAll } logits = Logits::kLast;
  };
  std::vector<Piece> pieces;
  int64_t rows() const;
  int64_t logit_rows() const;
};

/// Sees what a step does, layer by layer (tests, traces, training). Pointers are the host's: the step's own where the
/// backend's memory is the host's, else copies.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Before the first layer: all spans have one element a row. Sequences are the numbers that the KV cache gave.
  virtual void on_step(std::span<const TokenId> /*tokens*/, std::span<const int32_t> /*sequences*/,
                       std::span<const int32_t> /*positions*/) {}
  /// A layer begins: the residual stream is its input.
  virtual void on_layer(LayerId /*layer*/) {}
  /// Whether on_residual() is to be called.
  virtual bool wants_residual() const { return false; }
  /// residual: [tokens, hidden], the stream before the layer's attention (routed: false; of layer 0 the embeddings) or
  /// before its MoE block, just before on_routing() (routed: true).
  virtual void on_residual(LayerId /*layer*/, bool /*routed*/, int64_t /*tokens*/, const float* /*residual*/) {}
  /// The last layer has ended. Not called for a step that fails.
  virtual void on_step_end() {}
  /// x: [tokens, hidden] normalised input of the MoE block; logits: [tokens, experts].
  virtual void on_routing(LayerId layer, const float* x, const float* logits, const RoutingView& routing) = 0;
};

struct StepContext {
  const Model& model;
  const RopeTable& rope;
  Backend& backend;
  Stream& stream;
  Experts& experts;
  KvCache& kv;
  State& state;
  StepObserver* observer = nullptr;
};

/// One forward call. Reserves KV, runs all layers, advances the sequences. Returns logits [batch.logit_rows(), vocab]
/// in batch order, valid until the next call. RequestError: a token id out of range, or no room in the KV cache;
/// nothing has changed then. DeviceError from an expert that cannot be had: sequences keep their lengths.
/// top > 0 (at most the backend's most_top() and State::kMostTop): the largest logits of each row go to state.host_top
/// instead, and none are returned.
std::span<const float> forward(StepContext& context, const Batch& batch, int top = 0);

}  // namespace ef
