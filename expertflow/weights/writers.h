// Writing checkpoints tensor by tensor in bounded memory. Sizes are declared first, data streamed after, in declared
// order.
#pragma once
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "expertflow/weights/checkpoint.h"
#include "expertflow/weights/gguf.h"
#include "expertflow/weights/tensor_directory.h"

namespace ef {

/// Common face of both writers: declare every tensor, then write each one's bytes in pieces, then finish. A writer that
/// is destroyed before finish() leaves nothing behind. A full disk or a failed write is a DeviceError naming the file,
/// and the temporary files are removed; a wrong amount of bytes is a ModelError naming the tensor.
class CheckpointWriter {
 public:
  virtual ~CheckpointWriter() = default;
  /// Declares a tensor (name, format, row-major shape). Before the first write.
  virtual void declare(const std::string& name, Format format, const std::vector<int64_t>& shape) = 0;
  /// Appends bytes to the tensor being written; tensors come in the order of declaration, each complete before the
  /// next.
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// Checks that every declared byte was written, syncs, and makes the file visible (written under a temporary name,
  /// renamed).
  virtual void finish() = 0;
};

/// ConfigError unless a model made of `source` can be written to the file `out`: not over a file of the source or its
/// folder, no folder or device, and over an existing file only if `force`.
void check_output_file(const Checkpoint& source, const std::filesystem::path& out, bool force);

/// One GGUF v3 file with the given metadata: general.alignment honoured, split.* keys left out (the file is whole).
/// Names have less than 64 bytes, as ggml demands. Formats that GGUF lacks are refused.
std::unique_ptr<CheckpointWriter> make_gguf_writer(const std::filesystem::path& file, const GgufMetadata& metadata);
/// The header that such a file would begin with, without tensors.
std::string gguf_metadata_bytes(const GgufMetadata& metadata);
/// model.safetensors, or shards of at most shard_bytes with model.safetensors.index.json. Creates the folder. Within a
/// file tensors with wider elements come first, so that readers which map the file find every tensor aligned.
std::unique_ptr<CheckpointWriter> make_safetensors_writer(const std::filesystem::path& folder,
                                                          uint64_t shard_bytes = 5ull << 30);

}  // namespace ef
