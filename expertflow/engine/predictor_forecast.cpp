#include "expertflow/engine/predictor_forecast.h"

#include <algorithm>

#include "expertflow/base/errors.h"

namespace ef {

PredictorForecast::PredictorForecast(std::unique_ptr<Predictor> predictor, const Model& model, const State& state,
                                     int distance, int64_t max_rows, const CandidateRules& rules)
    : predictor_(std::move(predictor)), model_(model), state_(state), distance_(distance), rules_(rules) {
  EF_DCHECK(distance >= 1 && max_rows >= 1);
  probabilities_.resize(size_t(max_rows) * size_t(model.config.router.experts));
}

void PredictorForecast::forecast(LayerId layer, int64_t rows, Stream& stream, std::vector<ExpertKey>& likely) {
  likely.clear();
  const Config& c = model_.config;
  const size_t count = size_t(rows) * size_t(c.router.experts);
  EF_DCHECK(count <= probabilities_.size());
  StepView view;
  view.layer = layer, view.rows = rows;
  view.residual = state_.x, view.x = state_.normed, view.logits = state_.router_logits;
  view.routing = {rows, c.router.top_k, state_.router_ids, state_.router_weights};
  const LayerId last = std::min(LayerId(c.layers.size()) - 1, layer + distance_);
  for (LayerId target = layer + 1; target <= last; ++target) {
    if (!predictor_->covers(view.point, layer, target)) continue;
    predictor_->predict(view, target, stream, probabilities_.data());
    for (const Candidate& candidate :
         ranking_.rank(target, std::span(probabilities_).first(count), rows, rules_.of(target)))
      likely.push_back(candidate.key);
  }
}

}  // namespace ef
