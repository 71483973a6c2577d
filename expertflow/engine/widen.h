// Function-preserving widening: a large checkpoint out of a small one, with the same tokens and the same routing, so
// that real routing meets realistic sizes.
//
// Hidden features are tiled `hidden_copies` times (a): the residual stream becomes [x x ... x]. Matrices and embeddings
// are tiled unchanged along every hidden axis; norm weights and norm biases over the hidden axis are divided by a, so
// that a matrix's sum over a equal tiles is the sum over one. RMSNorm and LayerNorm take means over the tiles, which do
// not change. Routed experts' neurons are tiled `expert_copies` times (b): gate and up rows copied, the down columns of
// the b - 1 copies zero. Attention heads and dense FFNs keep their size; shared experts too, unless their width follows
// from the routed experts' in the config.
//
// No matrix is scaled, so block formats are copied block for block. Division by a is exact in F32 and BF16 for a power
// of two; other norms are written as F32. What is left is the order of summation: logits agree to rounding, not to the
// bit.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace ef {

struct WidenOptions {
  std::filesystem::path model;         ///< Hugging Face folder or GGUF (any shard)
  std::filesystem::path out;           ///< folder or .gguf file, of the same kind; must not exist
  int hidden_copies = 1;               ///< a
  int expert_copies = 1;               ///< b
  uint64_t shard_bytes = 5ull << 30;   ///< Hugging Face only
  uint64_t buffer_bytes = 8ull << 20;  ///< about this much memory beside one tensor row
};

struct WidenReport {
  int hidden = 0, expert_ffn = 0;  ///< of the result
  uint64_t bytes_in = 0, bytes_out = 0;
  std::vector<std::string> dropped;  ///< tensors not carried over: layers that the model skips, unused buffers
};

/// done and total bytes of the result.
using WidenProgress = std::function<void(uint64_t, uint64_t)>;

/// ConfigError: bad factors, `out` exists. ModelError: the model cannot be read or widened (naming the tensor or key).
/// DeviceError: reading or writing failed; nothing is left under the final names.
WidenReport widen(const WidenOptions& options, const WidenProgress& progress = {});

}  // namespace ef
