// The makers behind the rows of predictors.cpp.
#pragma once
#include "expertflow/predict/predictor.h"

namespace ef {

std::unique_ptr<Predictor> make_gate_ahead(const PredictorContext& context);
std::unique_ptr<Predictor> make_gate_ahead_plain(const PredictorContext& context);
std::unique_ptr<Predictor> make_linear(const PredictorContext& context);
std::unique_ptr<Predictor> make_hybrid(const PredictorContext& context);
std::unique_ptr<Predictor> make_low_rank(const PredictorContext& context);
std::unique_ptr<Predictor> make_pre_attention(const PredictorContext& context);
std::unique_ptr<Predictor> make_previous_token(const PredictorContext& context);
std::unique_ptr<Predictor> make_transition(const PredictorContext& context);
std::unique_ptr<Predictor> make_forest(const PredictorContext& context);
std::unique_ptr<Predictor> make_trained_set(const PredictorContext& context);

}  // namespace ef
