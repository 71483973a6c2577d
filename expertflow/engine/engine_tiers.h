// What stands behind an engine's Experts interface. Of the engine's own sources.
#pragma once
#include <memory>

#include "expertflow/engine/cached_experts.h"
#include "expertflow/engine/engine.h"
#include "expertflow/engine/foresight.h"
#include "expertflow/predict/trained.h"

namespace ef {

struct Engine::Tiers {
  std::unique_ptr<Experts> all_resident;
  std::unique_ptr<ExpertTier> tier;
  std::unique_ptr<TrainedPredictor> trained;  // what the predictor was made of, if a file
  std::unique_ptr<Predictor> predictor;
  std::unique_ptr<Foresight> foresight;
  ~Tiers() {
    if (tier) tier->experts().set_ahead(nullptr);
  }
  Experts& experts() { return all_resident ? *all_resident : tier->experts(); }
};

}  // namespace ef
