// Training of the low-rank predictor (low_rank.h): the best projection of that rank in closed form, then a perceptron
// and everything else together by gradient. Needs Eigen; called by train_heads().
#pragma once
#include <functional>
#include <vector>

#include "expertflow/base/thread_pool.h"
#include "expertflow/predict/host_router.h"
#include "expertflow/predict/samples.h"
#include "expertflow/predict/trained.h"

namespace ef {

struct TrainLowRankOptions {
  uint64_t most_numbers = 0;  ///< of all layers together; 0: no limit
};
/// Layers that have a target within the horizon.
std::vector<LayerId> low_rank_sources(const StepSamples& samples, const std::vector<HostRouter>& routers);
/// routers: by layer; empty for dense ones. progress() after each source, from one thread at a time. Deterministic
/// whatever the number of threads. ConfigError if not even the smallest keeps within the limit.
void train_low_rank(const StepSamples& samples, const RouterConfig& router, const std::vector<HostRouter>& routers,
                    const TrainLowRankOptions& options, ThreadPool& pool, const std::function<void()>& progress,
                    TrainedPredictor& out);

}  // namespace ef
