// From names to places: which tensor of the checkpoint plays which role, checked against the config's shapes, before
// any weight is read. All missing tensors are listed at once; tensors that nothing uses are an error (a MoE read as
// something else).
#pragma once
#include <string>
#include <vector>

#include "expertflow/model/arch.h"
#include "expertflow/weights/expert_store.h"

namespace ef {

struct BoundTensor {
  const TensorSpec* spec = nullptr;
  LayerId layer = -1;  ///< -1: of the model
  TensorInfo tensor;
  TensorInfo scales;  ///< kF8E4M3: the 128x128 block scales (weight_scale_inv), else empty name
};

struct Binding {
  std::vector<BoundTensor> tensors;   ///< everything but routed experts
  std::vector<LayerExperts> experts;  ///< sparse layers
  std::vector<std::string> skipped;   ///< names ignored knowingly (multi-token-prediction layers, inv_freq buffers)
  uint64_t resident_bytes = 0;        ///< memory that load() will take for `tensors`
};

/// Bytes that load_weights() keeps for a tensor: vectors and block scales in float32, matrices as stored (a fused kv_b
/// in a format that cannot be transposed in place: float32), each rounded up to 64.
uint64_t loaded_bytes(const Config& config, const BoundTensor& bound);

/// ModelError: every missing tensor listed once; a wrong shape or format with the tensor, expected and found; tensors
/// that nothing uses (side tensors of unknown quantisations among them); dense tensors where the config promises
/// experts.
Binding bind(const Architecture& arch, const Config& config, const Checkpoint& checkpoint);

}  // namespace ef
