// A checkpoint in the other file kind: Hugging Face folder to GGUF, GGUF to Hugging Face folder. The result is the same
// model: what the other kind has no way to say is refused before anything is written.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "expertflow/convert/tensor_writing.h"

namespace ef {

struct ConvertOptions {
  std::filesystem::path in;   ///< Hugging Face folder or GGUF (any shard)
  std::filesystem::path out;  ///< a .gguf file for a folder, a folder for a GGUF
  /// "source", "f32", "f16", "bf16": the format of matrices. "source" keeps each tensor's own (FP8 becomes BF16).
  std::string type = "source";
  std::string tokenizer_pre;            ///< overrides the pre-tokenizer's name
  bool force = false;                   ///< replace an existing file
  int threads = 0;                      ///< 0: all processors
  uint64_t shard_bytes = 5ull << 30;    ///< Hugging Face only
  uint64_t buffer_bytes = 16ull << 20;  ///< memory for conversion, beside transposed matrices
};

struct ConvertReport {
  bool to_gguf = false;
  size_t tensors = 0;
  uint64_t bytes_in = 0, bytes_out = 0;  ///< of tensors
  std::vector<std::string> notes;        ///< what was left out, for people
};

/// ConfigError: options or paths that cannot be honoured. ModelError: the model cannot be read, or cannot be said in
/// the other kind. DeviceError: reading or writing failed; nothing is left under the final names.
ConvertReport convert_checkpoint(const ConvertOptions& options, const ConvertProgress& progress = {});

}  // namespace ef
