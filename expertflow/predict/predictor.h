// A predictor says how likely each expert of a layer further on is to be chosen, row by row. It only predicts: whoever
// asks turns probabilities into candidates (candidates.h), and decides what is copied. Pure computation, no I/O, no
// clock, deterministic: same model, same rows, same bits.
//
// The work is in two halves, so that a device can have the first inside its graph: queue() puts a small product on the
// stream (ops of the backend alone, no host), finish() turns what it left into probabilities on the host after the
// stream has come so far. Everything that either needs is allocated when the predictor is made.
//
//   begin_step(start)                        the rows of the step
//   observe(view)                            every look at every layer, in order
//   queue(view, first, last, stream)         any targets of the look just observed that covers() allows
//   stream.synchronize()                     predict() does these three in a row
//   finish(target, probabilities)
#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "expertflow/model/model.h"
#include "expertflow/predict/step_view.h"

namespace ef {

class TrainedPredictor;  // trained.h: the weights that a file of `train-predictor` holds

/// What one prediction of one target costs.
struct PredictorCost {
  uint64_t flops = 0;    ///< a row; a product of n x m counts 2 n m
  uint64_t weights = 0;  ///< numbers that are read, the model's own among them
};

class Predictor {
 public:
  virtual ~Predictor() = default;
  virtual std::string_view name() const = 0;
  /// Whether a look at `layer` says something about `target`. Distance is target - layer: 0 is the layer itself, of use
  /// before its attention (and as a test: gate-ahead must then give the router's own choice).
  virtual bool covers(StepPoint point, LayerId layer, LayerId target) const = 0;
  virtual PredictorCost cost(StepPoint point, LayerId layer, LayerId target) const = 0;
  /// Numbers that the predictor holds beside the model's.
  virtual uint64_t parameters() const = 0;

  virtual void begin_step(const StepStart& /*start*/) {}
  /// For predictors with a memory (of tokens, of choices). Every look, also those that nothing is asked about.
  virtual void observe(const StepView& /*view*/) {}
  /// Targets first..last, all covered, within the horizon of the context; view.rows at most its max_rows.
  virtual void queue(const StepView& view, LayerId first, LayerId last, Stream& stream) = 0;
  /// probabilities: [rows of the look, experts], the host's: of being among the top_k that the row's router chooses.
  /// Each within [0, 1]; they sum to about top_k if well calibrated. For a target of the last queue().
  virtual void finish(LayerId target, float* probabilities) = 0;

  /// queue(), wait, finish() for one target.
  void predict(const StepView& view, LayerId target, Stream& stream, float* probabilities) {
    queue(view, target, target, stream);
    stream.synchronize();
    finish(target, probabilities);
  }
};

/// What a predictor is made of. All of it must outlive the predictor.
struct PredictorContext {
  const Model& model;
  Backend& backend;
  int64_t max_rows = 0;                       ///< of the steps that it is asked about
  int horizon = 0;                            ///< largest distance that it is asked for
  const TrainedPredictor* trained = nullptr;  ///< null: no file
};
struct PredictorInfo {
  std::string_view name;  ///< as the flag takes it
  std::string_view summary;
  bool trained = false;  ///< needs a file of `expertflow train-predictor`
  std::unique_ptr<Predictor> (*make)(const PredictorContext&);
};
std::span<const PredictorInfo> predictors();  ///< predictors.cpp: the one table
/// ConfigError: an unknown name (lists the known ones), or one that needs a file where there is none.
std::unique_ptr<Predictor> make_predictor(std::string_view name, const PredictorContext& context);

}  // namespace ef
