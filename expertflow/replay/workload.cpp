#include "expertflow/replay/workload.h"

#include <algorithm>
#include <cmath>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

// Events of `rows` rows from `first` on.
WorkloadStep cut(const TraceHeader& header, const TraceStep& step, size_t index, size_t first, size_t rows,
                 double layer_seconds) {
  WorkloadStep out{index, first, rows, {}, {}};
  const auto k = std::ptrdiff_t(header.top_k);
  for (size_t i = 0; i < step.layers.size(); ++i) {
    const TraceLayer& layer = step.layers[i];
    TraceLayer part;
    if (header.layers[i].experts > 0) {
      const auto begin = layer.chosen.begin() + std::ptrdiff_t(first) * k;
      part.chosen.assign(begin, begin + std::ptrdiff_t(rows) * k);
    }
    out.events.push_back(trace_event(part));
    const double own = double(layer.compute_ns) * double(rows) / double(step.rows.size());
    out.compute.emplace_back(std::llround(layer_seconds > 0 ? layer_seconds * 1e9 : own));
  }
  return out;
}

}  // namespace

Workload make_workload(std::shared_ptr<const Trace> trace, const WorkloadOptions& options) {
  Workload workload;
  workload.trace = std::move(trace);
  const TraceHeader& header = workload.trace->header;
  for (const auto& layer : header.layers) {
    const bool sparse = layer.experts > 0;
    workload.geometry.layers.push_back(
        {layer.experts, sparse && options.expert_bytes > 0 ? options.expert_bytes : layer.slot_bytes});
  }
  Duration compute{0};
  for (size_t i = 0; i < workload.trace->steps.size(); ++i) {
    const TraceStep& step = workload.trace->steps[i];
    const size_t piece = options.split_rows ? 1 : step.rows.size();
    for (size_t row = 0; row < step.rows.size(); row += piece) {
      if (options.max_tokens > 0 && workload.tokens + piece > options.max_tokens) break;
      workload.steps.push_back(cut(header, step, i, row, piece, options.layer_seconds));
      workload.tokens += piece;
      for (const Duration d : workload.steps.back().compute) compute += d;
    }
  }
  EF_CHECK(!workload.steps.empty(), ConfigError, "{}: expected a step or more to replay, found none", header.model);
  EF_CHECK(compute > Duration(0), ConfigError,
           "the trace of {} has no times: say how long a layer computes (--layer-time)", header.model);
  return workload;
}

std::vector<LayerEvent> Workload::layer_events() const {
  std::vector<LayerEvent> all;
  for (const WorkloadStep& step : steps)
    for (size_t i = 0; i < step.events.size(); ++i)
      if (!step.events[i].experts.empty()) all.push_back({LayerId(i), step.events[i].experts});
  return all;
}

}  // namespace ef
