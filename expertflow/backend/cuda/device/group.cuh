// The router's choices by expert: an order of the assignments in which each expert's stand together, ascending, and
// tiles over it. Assignments whose id is no expert's are in no place of the order.
#pragma once
#include "fast.h"

namespace ef::cuda {

struct GroupParams {
  const int32_t* ids = nullptr;  ///< [assignments]
  int64_t assignments = 0;
  int experts = 0, tile_rows = 0;
  int32_t* counts = nullptr;  ///< [experts]
  int32_t* order = nullptr;   ///< [assignments]: assignment at a place
  Tile* tiles = nullptr;      ///< [most_tiles()]
  int32_t* totals = nullptr;  ///< [2]: tiles, places
};
int64_t most_tiles(int64_t assignments, int experts, int tile_rows);
cudaError_t group(const GroupParams&, cudaStream_t);

/// The rows' sums in rank order of down's [assignments, hidden], to out or add_to; what has no expert counts as zero.
cudaError_t combine_routed(const RoutedParams&, const float* down, cudaStream_t);

}  // namespace ef::cuda
