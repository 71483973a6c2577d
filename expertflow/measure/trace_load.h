// How a recorded run used its experts: load, balance, collisions, reuse.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "expertflow/trace/trace_file.h"

namespace ef {

/// One sparse layer over all rows of a trace.
struct LayerLoad {
  LayerId layer = 0;
  std::vector<uint64_t> rows;   ///< that chose each expert
  double entropy = 0;           ///< of the choices, in bits
  double entropy_share = 0;     ///< of what equal load would have: log2(experts)
  double variation = 0;         ///< coefficient: standard deviation of the load over its mean
  double expected_shared = 0;   ///< experts that two rows drawn at random have in common: sum of (share of rows)^2
  double uniform_shared = 0;    ///< ... if all experts were equally likely: top_k^2 / experts
  double neighbour_shared = 0;  ///< experts that a row has in common with the one before it in its request, mean
  double median_gap = 0;        ///< steps from one use of an expert to the next, median
};

struct TraceLoad {
  uint64_t steps = 0, rows = 0, requests = 0, accesses = 0;  ///< accesses: distinct experts of layer events
  int top_k = 0;
  std::vector<LayerLoad> layers;
  /// Distinct experts, of all layers, that were asked for since the last use of the same one: the slots that an LRU
  /// cache of equal slots needs to still have it. Of accesses that are not the first; ascending.
  std::vector<uint32_t> reuse;
  uint64_t first_uses = 0;
  uint64_t experts = 0;  ///< of the model
  std::optional<uint32_t> reuse_percentile(double share) const;
  /// Share of accesses that an LRU cache of so many slots would have served.
  double lru_hit_rate(uint64_t slots) const;
  /// Experts that `rows` rows drawn at random ask for in a layer, mean over layers.
  double expected_distinct(int rows_at_once) const;
};

/// Reads the trace to its end; ModelError as TraceReader.
TraceLoad load_of(TraceReader& trace);

}  // namespace ef
