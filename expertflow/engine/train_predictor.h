// Training a predictor from text: record what the model does, fit heads, judge them on text that was held out.
#pragma once
#include "expertflow/engine/recall.h"
#include "expertflow/engine/step_recorder.h"
#include "expertflow/predict/train_heads.h"
#include "expertflow/predict/trained.h"

namespace ef {

struct TrainPredictorOptions {
  TrainHeadsOptions heads;
  int64_t max_tokens = 49152;  ///< of all texts together
};
/// progress(what, done, total) during the two stages. ConfigError: no sparse layers, a device whose memory the host
/// does not see, a build without Eigen. The result's fingerprint is that of the engine's model.
TrainedPredictor train_predictor(Engine& engine, const std::vector<NamedText>& texts,
                                 const TrainPredictorOptions& options,
                                 const std::function<void(const char*, uint64_t, uint64_t)>& progress);

/// A text cut in two: windows of `window` tokens, every tenth of them held out.
std::pair<NamedText, NamedText> hold_out(const NamedText& text, int64_t window);

/// Which predictor recalls most on average over texts and 1 to `distance` layers ahead; what it does not cover counts
/// as nothing. "trained" among equals: it has all that a file holds.
struct BestPredictor {
  std::string name;
  double recall = 0;
};
BestPredictor best_predictor(const std::vector<std::vector<RecallTable>>& tables, int distance);  ///< [text][predictor]

/// Tables of recall by distance, a line a distance and a column a text, for people.
std::string recall_text(const std::vector<std::string>& texts,
                        const std::vector<std::vector<RecallTable>>& tables);  ///< [text][predictor]

}  // namespace ef
