// A predictor (predict/) as the forecast of experts in tiers: shown each layer while its copies are under way, asked
// about the layers after it.
#pragma once
#include <memory>
#include <vector>

#include "expertflow/engine/cached_experts.h"
#include "expertflow/model/model.h"
#include "expertflow/predict/candidates.h"
#include "expertflow/predict/predictor.h"

namespace ef {

class PredictorForecast final : public ExpertForecast {
 public:
  /// distance: layers ahead, 1 at least. max_rows: of the steps that it is asked about. All arguments must outlive it;
  /// state is that of the steps.
  PredictorForecast(std::unique_ptr<Predictor> predictor, const Model& model, const State& state, int distance,
                    int64_t max_rows, const CandidateRules& rules);
  void forecast(LayerId layer, int64_t rows, Stream& stream, std::vector<ExpertKey>& likely) override;

 private:
  std::unique_ptr<Predictor> predictor_;
  const Model& model_;
  const State& state_;
  const int distance_;
  const CandidateRules rules_;
  CandidateRanking ranking_;
  std::vector<float> probabilities_;  // [max_rows, experts]
};

}  // namespace ef
