// Everything that a file holds as one predictor: before attention the pre-attention heads, after the router the best of
// the kinds that reach the target, and gate-ahead wherever none was trained.
#include "expertflow/predict/predictor_table.h"
#include "expertflow/predict/trained.h"

namespace ef {
namespace {

class TrainedSet final : public Predictor {
 public:
  explicit TrainedSet(const PredictorContext& context) {
    struct Part {
      std::string_view kind;
      std::unique_ptr<Predictor> (*make)(const PredictorContext&);
    };
    for (const Part& part : {Part{"pre-attention", make_pre_attention},
                             {"hybrid", make_hybrid},
                             {"linear", make_linear},
                             {"low-rank", make_low_rank}})
      if (context.trained->has(part.kind)) parts_.push_back(part.make(context));
    // The weakest and dearest of what is trained, yet better than gate-ahead: for distances that no head reaches.
    if (context.trained->has("forest") && context.backend.memory_is_host()) parts_.push_back(make_forest(context));
    parts_.push_back(make_gate_ahead(context));
  }
  std::string_view name() const override { return "trained"; }
  bool covers(StepPoint point, LayerId layer, LayerId target) const override { return part(point, layer, target); }
  PredictorCost cost(StepPoint point, LayerId layer, LayerId target) const override {
    return part(point, layer, target)->cost(point, layer, target);
  }
  uint64_t parameters() const override {
    uint64_t all = 0;
    for (const auto& p : parts_) all += p->parameters();
    return all;
  }
  void begin_step(const StepStart& start) override {
    for (const auto& p : parts_) p->begin_step(start);
  }
  void observe(const StepView& view) override {
    for (const auto& p : parts_) p->observe(view);
  }
  void queue(const StepView& view, LayerId first, LayerId last, Stream& stream) override {
    point_ = view.point, layer_ = view.layer;
    // Each part is asked once, from its first target to its last: what it holds of a look is that of one queue().
    for (const auto& p : parts_) {
      LayerId from = first, to = last;
      while (from <= last && part(point_, layer_, from) != p.get()) ++from;
      while (to >= from && part(point_, layer_, to) != p.get()) --to;
      if (from <= to) p->queue(view, from, to, stream);
    }
  }
  void finish(LayerId target, float* probabilities) override {
    part(point_, layer_, target)->finish(target, probabilities);
  }

 private:
  Predictor* part(StepPoint point, LayerId layer, LayerId target) const {
    for (const auto& p : parts_)
      if (p->covers(point, layer, target)) return p.get();
    return nullptr;
  }
  std::vector<std::unique_ptr<Predictor>> parts_;
  StepPoint point_ = StepPoint::kRouted;
  LayerId layer_ = 0;
};

}  // namespace

std::unique_ptr<Predictor> make_trained_set(const PredictorContext& context) {
  return std::make_unique<TrainedSet>(context);
}

}  // namespace ef
