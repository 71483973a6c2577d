// How each tensor of a checkpoint becomes a wider one. Internal to widening.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "expertflow/model/arch.h"
#include "expertflow/model/binding.h"

namespace ef {

/// An axis of equal groups, each repeated `copies` times in place: [g0 g1] -> [g0 g0 g1 g1].
struct AxisTiling {
  int groups = 1;
  int copies = 1;
  bool zero_copies = false;  ///< copies after the first hold zeros
};

struct TensorTiling {
  TensorInfo tensor;           ///< source: `outer` matrices of `rows` rows of `row_bytes` bytes
  Format format;               ///< of the result
  std::vector<int64_t> shape;  ///< of the result
  int64_t outer = 1, rows = 1;
  AxisTiling row_axis, col_axis;
  int divisor = 1;  ///< norms only

  uint64_t row_bytes() const { return tensor.bytes / uint64_t(outer * rows); }
};

struct WidenFactors {
  int hidden = 1, expert_ffn = 1, shared_ffn = 1;
};

/// Changes the sizes in a copy of the checkpoint's config or metadata, and says by how much each axis grows.
struct WidenedHeader {
  Checkpoint checkpoint;  ///< config and metadata of the result; the directory is the source's
  Config config;          ///< as read back from it
  WidenFactors factors;
};
WidenedHeader widen_header(const Architecture& arch, const Checkpoint& source, const Config& config, int hidden_copies,
                           int expert_copies);

/// One entry a tensor that the binding uses, by name.
std::unordered_map<std::string, TensorTiling> plan_widening(const Config& config, const Checkpoint& source,
                                                            const Binding& binding, const WidenFactors& factors);

}  // namespace ef
