// What stands behind an engine's Experts interface. Of the engine's own sources.
#pragma once
#include <memory>

#include "expertflow/engine/cached_experts.h"
#include "expertflow/engine/engine.h"
#include "expertflow/engine/foresight.h"
#include "expertflow/predict/router_scores.h"
#include "expertflow/predict/trained.h"

namespace ef {

/// Tells the cache what routers say of each event of few rows before it comes: near misses count for the policy.
class ScoreWatch final : public StepObserver {
 public:
  ScoreWatch(const Config& config, ExpertCache& cache) : scores_(config.router), cache_(cache) {}
  void on_routing(LayerId layer, const float*, const float* logits, const RoutingView& routing) override {
    constexpr int64_t kFewRows = 31;  // of more, nearly every expert is probable
    if (routing.tokens <= kFewRows) cache_.note_scores(layer, scores_.of(logits, routing.tokens));
  }

 private:
  RouterScores scores_;
  ExpertCache& cache_;
};

struct Engine::Tiers {
  std::unique_ptr<Experts> all_resident;
  std::unique_ptr<ExpertTier> tier;
  std::unique_ptr<TrainedPredictor> trained;  // what the predictor was made of, if a file
  std::unique_ptr<Predictor> predictor;
  std::unique_ptr<Foresight> foresight;
  std::unique_ptr<ScoreWatch> scores;
  ~Tiers() {
    if (tier) tier->experts().set_ahead(nullptr);
  }
  Experts& experts() { return all_resident ? *all_resident : tier->experts(); }
};

}  // namespace ef
