// A layer's router as numbers on the host.
#pragma once
#include <vector>

#include "expertflow/model/model.h"

namespace ef {

struct HostRouter {
  std::vector<float> weight;  ///< [experts, hidden], with the norm's weight folded in: on the stream normalised alone
  std::vector<float> bias;    ///< [experts], the norm's bias folded in
  std::vector<float> selection_bias;  ///< [experts], or empty
  std::vector<float> norm;            ///< [hidden] the norm's weight
};

/// Of a sparse layer's router: [experts] biases that only select, or empty.
std::vector<float> read_selection_bias(const Model& model, Backend& backend, LayerId layer);
/// Of a sparse layer.
HostRouter read_host_router(const Model& model, Backend& backend, LayerId layer);

}  // namespace ef
