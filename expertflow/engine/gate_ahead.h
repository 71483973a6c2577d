// The plain rule for reading ahead: the router of a later layer, applied to the residual stream as it is now,
// normalised as that layer will normalise it. What the layers between will add is left out, so it is a guess, and a
// good one a layer or two ahead.
#pragma once
#include <vector>

#include "expertflow/engine/cached_experts.h"
#include "expertflow/model/model.h"

namespace ef {

class GateAhead final : public ExpertForecast {
 public:
  /// distance: layers ahead, 1 at least. max_rows: of the steps that it is asked about. All arguments must outlive it;
  /// state is that of the steps.
  GateAhead(const Model& model, const State& state, Backend& backend, int distance, int64_t max_rows);
  void forecast(LayerId layer, int64_t rows, Stream& stream, std::vector<ExpertKey>& likely) override;

 private:
  const Model& model_;
  const State& state_;
  Backend& backend_;
  const int distance_;
  const int64_t max_rows_;
  Buffer memory_;  // normed [rows, hidden], logits [rows, experts], weights and ids [rows, top_k]
  std::vector<int32_t> ids_;
};

}  // namespace ef
