// A trace as what a cache sees of it: steps, their layers' events, and how long each layer computes.
#pragma once
#include <memory>
#include <vector>

#include "expertflow/cache/clairvoyant.h"
#include "expertflow/trace/trace_file.h"

namespace ef {

struct WorkloadOptions {
  bool split_rows = false;    ///< each row a step of its own, as decoding it would have been
  uint64_t max_tokens = 0;    ///< 0: all
  double layer_seconds = 0;   ///< compute of one layer; 0: the trace's own (ConfigError if it has none)
  uint64_t expert_bytes = 0;  ///< of one expert's slot; 0: the trace's own
};

struct WorkloadStep {
  size_t trace_step = 0, first_row = 0, rows = 0;  ///< where it came from
  std::vector<TraceEvent> events;                  ///< by LayerId; empty ones: dense layers
  std::vector<Duration> compute;                   ///< by LayerId
};

struct Workload {
  std::shared_ptr<const Trace> trace;
  CacheGeometry geometry;
  std::vector<WorkloadStep> steps;
  uint64_t tokens = 0;

  int layers() const { return int(geometry.layers.size()); }
  std::vector<LayerEvent> layer_events() const;  ///< as the clairvoyant bound takes them
};

/// ConfigError: nothing to replay, or no times.
Workload make_workload(std::shared_ptr<const Trace> trace, const WorkloadOptions& options);

}  // namespace ef
