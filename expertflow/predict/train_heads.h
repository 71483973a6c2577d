// Ridge regressions for the heads of head_predictor.cpp, and the other trained kinds, from samples. Needs Eigen; a
// build without it has no train_heads() that works (training_available()).
#pragma once
#include <functional>
#include <vector>

#include "expertflow/base/thread_pool.h"
#include "expertflow/predict/host_router.h"
#include "expertflow/predict/samples.h"
#include "expertflow/predict/trained.h"

namespace ef {

bool training_available();

struct TrainHeadsOptions {
  int distance = 6;  ///< largest, of linear and hybrid
  bool linear = false, hybrid = true, pre_attention = true;
  bool forest = false;  ///< by four threads at most
  bool low_rank = false;
  uint64_t most_low_rank_numbers = 0;  ///< of all its layers; 0: no limit
};
/// routers: by layer; empty for dense ones. Adds heads and history.mean to `out`. progress(done, total) in heads, from
/// one thread at a time. Deterministic whatever the number of threads. ConfigError without Eigen.
void train_heads(const StepSamples& samples, const RouterConfig& router, const std::vector<HostRouter>& routers,
                 const TrainHeadsOptions& options, ThreadPool& pool,
                 const std::function<void(size_t, size_t)>& progress, TrainedPredictor& out);

}  // namespace ef
