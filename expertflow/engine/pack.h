// Packing: a checkpoint as one file (weights/packed.h) in which each expert is a single aligned block with a checksum,
// read straight into its slot. Tokens are those of the source: slots hold the same bytes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace ef {

struct PackOptions {
  std::filesystem::path model;         ///< Hugging Face folder or GGUF (any shard)
  std::filesystem::path out;           ///< the file to write
  bool force = false;                  ///< replace a file that is there; never one of the model's own
  std::string layout = "auto";         ///< of the matrices: "rows", "tiles16" where a format has it, "auto": as the
                                       ///< kernels of this machine want it, so that nothing is left to do after a read
  uint64_t buffer_bytes = 8ull << 20;  ///< about this much memory beside one expert
};

struct PackReport {
  uint64_t bytes_in = 0, bytes_out = 0;
  int64_t experts = 0;
  std::vector<std::string> dropped;  ///< tensors not carried over: layers that the model skips
};

/// done and total bytes of the result.
using PackProgress = std::function<void(uint64_t, uint64_t)>;

/// ConfigError: an unknown layout, `out` exists without force, is a file of the model, or the model is packed already.
/// ModelError: the model cannot be read, or holds bad numbers. DeviceError: reading or writing failed; nothing is left
/// under `out` then that was not there before.
PackReport pack(const PackOptions& options, const PackProgress& progress = {});

}  // namespace ef
