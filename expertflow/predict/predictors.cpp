// The one table of predictors. A new predictor is one file with a maker, declared in predictor_table.h, and one row
// here; tests/predict/predictor_contract_test.cpp picks it up by itself.
#include <array>
#include <string>

#include "expertflow/base/errors.h"
#include "expertflow/predict/predictor_table.h"

namespace ef {
namespace {

constexpr std::array kPredictors = {
    PredictorInfo{"gate-ahead", "the later layer's router on the residual stream as that layer will normalise it",
                  false, make_gate_ahead},
    PredictorInfo{"gate-ahead-plain", "the later layer's router on this layer's own MoE input", false,
                  make_gate_ahead_plain},
    PredictorInfo{"previous-token", "what the sequence's earlier tokens chose at the layer, the latest first", false,
                  make_previous_token},
    PredictorInfo{"transition", "which experts followed this layer's choices so far: a table that learns while it runs",
                  false, make_transition},
    PredictorInfo{"linear", "a trained head for each layer and distance on the residual stream", true, make_linear},
    PredictorInfo{"hybrid", "gate-ahead with a trained correction from the stream and from earlier tokens' routing",
                  true, make_hybrid},
    PredictorInfo{"low-rank", "a trained low-rank projection of the stream and a small perceptron, four layers ahead",
                  true, make_low_rank},
    PredictorInfo{"pre-attention", "a trained head for each layer before its attention; covers the first layer", true,
                  make_pre_attention},
    PredictorInfo{"forest", "a random forest over gate-ahead, the embedding and earlier choices", true, make_forest},
    PredictorInfo{"trained", "all that a trained file holds: pre-attention, hybrid, and gate-ahead beyond them", true,
                  make_trained_set},
};

}  // namespace

std::span<const PredictorInfo> predictors() { return kPredictors; }

std::unique_ptr<Predictor> make_predictor(std::string_view name, const PredictorContext& context) {
  std::string known;
  for (const PredictorInfo& info : kPredictors) {
    if (info.name == name) {
      EF_CHECK(context.trained || !info.trained, ConfigError,
               "predictor '{}': expected the file of a trained predictor (expertflow train-predictor), found none",
               name);
      return info.make(context);
    }
    known += (known.empty() ? "" : ", ") + std::string(info.name);
  }
  fail<ConfigError>("predictor '{}': unknown; known are {}", name, known);
}

}  // namespace ef
