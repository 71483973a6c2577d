// How good predictors are: recall as the literature defines it, by distance, on text that the model reads token by
// token.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "expertflow/engine/engine.h"
#include "expertflow/predict/predictor.h"

namespace ef {

/// Of one predictor at one target from one look. A case is a token.
struct RecallCount {
  uint64_t cases = 0;
  uint64_t hits_k = 0, hits_2k = 0;    ///< routed experts among the k, and the 2k, likeliest
  uint64_t exact = 0, half = 0;        ///< the k likeliest are the routed set; at least half of it
  uint64_t likeliest = 0;              ///< the likeliest is among the routed
  uint64_t first_1 = 0, first_3 = 0;   ///< the router's first choice is the likeliest; is among the three likeliest
  double expected_k = 0;               ///< sum of the k likeliest's probabilities: hits_k if they are calibrated
  double candidates = 0, covered = 0;  ///< at the default CandidateRule: how many, and how many of the routed
  void add(const RecallCount& other);
};

class RecallTable {
 public:
  RecallTable(std::string predictor, int layers, int top_k);
  const std::string& predictor() const { return predictor_; }
  int layers() const { return layers_; }
  RecallCount& at(StepPoint point, LayerId layer, LayerId target);
  const RecallCount& at(StepPoint point, LayerId layer, LayerId target) const;
  /// Share of routed experts among the likeliest k (twice: 2k), each pair of look and target with equal weight;
  /// negative if there is none. Targets from first_target on.
  double recall(StepPoint point, int distance, bool twice = false, LayerId first_target = 0) const;
  double recall_of(const RecallCount& c, bool twice = false) const;
  RecallCount sum(StepPoint point, int distance) const;
  void add(const RecallTable& other);

 private:
  std::string predictor_;
  int layers_, top_k_;
  std::vector<RecallCount> counts_;
};

struct RecallOptions {
  int64_t window = 1024, most = 4096;  ///< tokens
  bool from_start = false;             ///< the first windows, rather than such as are spread over the text
};
/// predictors: made with max_rows of at least 1. Each is shown every token as a step of its own, all looks in order,
/// and asked about every target that it covers. progress(done) in tokens.
std::vector<RecallTable> measure_recall(Engine& engine, std::span<Predictor* const> predictors, Stream& stream,
                                        std::span<const TokenId> tokens, const RecallOptions& options,
                                        const std::function<void(uint64_t)>& progress = {});

/// a exp(-b t) + c with c of at least 0, least squares over the points (t, y): the curve that predictors' accuracy is
/// described by (arXiv 2510.26730).
struct DecayFit {
  double a = 0, b = 0, c = 0, worst = 0;  ///< worst: largest distance of a point from the curve
};
DecayFit fit_decay(std::span<const double> t, std::span<const double> y);

}  // namespace ef
