// Looking ahead while a step runs: a predictor says which experts the next layers will want, the step controller how
// far to look, the governor what of it is worth copying now; the pipeline copies it behind everything that is asked
// for, and the eviction policy hears what is likely. A hint throughout: no token depends on it.
//
// On the step's thread alone.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "expertflow/engine/cached_experts.h"
#include "expertflow/engine/expert_metrics.h"
#include "expertflow/model/model.h"
#include "expertflow/predict/candidates.h"
#include "expertflow/predict/predictor.h"
#include "expertflow/predict/regime.h"
#include "expertflow/predict/step_controller.h"
#include "expertflow/sched/prefetch_governor.h"

namespace ef {

struct ForesightOptions {
  int horizon = 0;  ///< MoE layers that are looked ahead; 0: the step controller says
  StepControllerOptions controller;
  CandidateRules candidates;
  GovernorOptions governor;
};

struct ForesightStats {
  std::string predictor;
  bool adaptive = false;
  int horizon = 0;                 ///< of the next step
  StepControllerStats controller;  ///< what it goes by, and its changes with their reasons
  GovernorStats governor;
  PredictionCounts prediction;                ///< by the last prediction before each event
  std::vector<PredictionCounts> by_distance;  ///< [0]: one layer ahead
  double predict_seconds = 0;                 ///< that predicting took of the steps
  RegimeStats regimes;
};

class Foresight final : public ExpertsAhead, public StepObserver {
 public:
  /// state: where the steps' activations are, in the host's memory. predictor: made for options.governor.most_rows rows
  /// and the largest horizon. All arguments must outlive it.
  Foresight(const Config& config, const State& state, Predictor& predictor, Stream& stream, ExpertCache& cache,
            CopyPipeline& pipeline, const CachedExperts& experts, const Clock& clock, const ForesightOptions& options);

  // Of a step.
  void on_step(std::span<const TokenId> tokens, std::span<const int32_t> sequences,
               std::span<const int32_t> positions) override;
  void on_layer(LayerId layer) override;
  void on_routing(LayerId, const float*, const float*, const RoutingView&) override {}
  /// After the step; failed: it threw.
  void end_step(bool failed);

  // Of a layer's event, by the experts' tier.
  void on_event(LayerId layer, std::span<const ExpertId> wanted) override;
  void look(LayerId layer, const RoutingView& host) override;

  /// The link was measured by itself. Between steps.
  void calibrated(double bytes_per_second) { controller_.on_calibration(bytes_per_second); }

  ForesightStats stats() const;

 private:
  struct Prediction {
    int distance = 0;
    std::vector<Candidate> ranked;  // likeliest first
    double certainty = 0;           // mean probability of the k likeliest
    int missing = 0;                // of ranked, neither near nor on their way then
  };
  struct Ahead {  // a copy that was issued for a layer to come
    ExpertKey key;
    int lead = 0;  // layers from the one that ran when it came to its own; 0: it has not come
  };

  LinkView link() const;
  int horizon() const { return options_.horizon > 0 ? options_.horizon : controller_.distance(); }
  int steps_to(LayerId from, LayerId target) const;
  bool looked_at() const { return rows_ <= options_.governor.most_rows; }
  void tell_controller(LayerId layer, std::span<const ExpertId> wanted);
  void predict(const StepView& view, LayerId first, LayerId last);
  void issue(LayerId current);
  void score(LayerId layer, std::span<const ExpertId> wanted);
  void note_arrivals();
  void judge_ahead(LayerId layer, std::span<const ExpertId> wanted);

  const Config& config_;
  const State& state_;
  Predictor& predictor_;
  Stream& stream_;
  ExpertCache& cache_;
  CopyPipeline& pipeline_;
  const CachedExperts& experts_;
  const Clock& clock_;
  ForesightOptions options_;
  PrefetchGovernor governor_;
  StepController controller_;
  RegimeTracker regimes_;
  CandidateRanking ranking_;
  std::vector<int> sparse_until_;  // by layer: MoE layers up to it, itself included
  int64_t rows_ = 0;
  LayerId routed_ = -1;                             // the last layer whose event has come
  std::vector<std::vector<Prediction>> predicted_;  // by layer, for events to come
  struct Fresh {
    Candidate candidate;
    int distance = 1;
  };
  std::vector<Fresh> fresh_;  // of the present look, all targets
  std::vector<Ahead> ahead_;  // of the step, for events to come
  std::vector<float> probabilities_;
  Duration event_time_{0};  // of the last event, with compute's waiting until then
  double event_stall_ = 0;
  double step_stall_ = 0;                         // until the step began
  double copied_bytes_ = 0, copied_seconds_ = 0;  // that the controller knows of
  ForesightStats stats_;
};

}  // namespace ef
