// Keeps what steps do, for training and judging predictors. CPU only: it reads the steps' own memory.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "expertflow/engine/engine.h"
#include "expertflow/predict/samples.h"
#include "expertflow/text/tokenizer.h"

namespace ef {

/// The rows of one step.
struct RecordedRows {
  int64_t rows = 0;
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions;
  struct Layer {
    std::vector<float> input, routed, x, logits;  ///< [rows, hidden] x 3, [rows, experts]; dense layers: input alone
    std::vector<int32_t> chosen;                  ///< [rows, top_k]
  };
  std::vector<Layer> layers;
};

class StepRecorder final : public StepObserver {
 public:
  explicit StepRecorder(const Config& config) : config_(config) { recorded.layers.resize(config.layers.size()); }
  RecordedRows recorded;

  void on_step(std::span<const TokenId> tokens, std::span<const int32_t> sequences,
               std::span<const int32_t> positions) override;
  bool wants_residual() const override { return true; }
  void on_residual(LayerId layer, bool routed, int64_t tokens, const float* residual) override;
  void on_routing(LayerId layer, const float* x, const float* logits, const RoutingView& routing) override;

 private:
  const Config& config_;
};

/// A text with the name that results are listed under.
struct NamedText {
  std::string name;
  std::vector<TokenId> tokens;
};
/// Documents between lines "<|endoftext|>", newlines stripped at both ends, those of at most 200 characters left out,
/// each tokenised alone and followed by id 0 or the end-of-text token that the tokenizer has.
std::vector<TokenId> document_tokens(const Tokenizer& tokenizer, std::string_view text);

/// Feeds windows of `window` tokens, each a sequence of its own, and shows the rows of every step. most: tokens at
/// most, in whole windows, spread over the text (from_start: the first ones). Stops when `sink` returns false.
void record_windows(Engine& engine, std::span<const TokenId> tokens, int64_t window, int64_t most, bool from_start,
                    const std::function<bool(const RecordedRows&)>& sink);

/// Samples for training from several texts, as many tokens of each. progress(done, total) in tokens.
StepSamples record_samples(Engine& engine, const std::vector<NamedText>& texts, int64_t most,
                           const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace ef
