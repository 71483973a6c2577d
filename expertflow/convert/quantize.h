// A GGUF in a block format, from a Hugging Face folder or from another GGUF.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "expertflow/convert/tensor_writing.h"

namespace ef {

struct QuantizeOptions {
  std::filesystem::path in;   ///< Hugging Face folder or GGUF (any shard)
  std::filesystem::path out;  ///< .gguf file
  std::string type;           ///< a name of quant_types()
  std::string
      output_type;  ///< format of output.weight (of token_embd.weight where embeddings are tied); empty: by rule
  std::string token_embedding_type;
  bool allow_requantize = false;  ///< block formats into other formats
  std::string tokenizer_pre;
  bool force = false;
  int threads = 0;
  uint64_t buffer_bytes = 16ull << 20;
};

struct QuantizedTensor {
  std::string name;
  std::vector<int64_t> shape;
  Format from = Format::kF32, to = Format::kF32;
  uint64_t bytes_in = 0, bytes_out = 0;
  bool fallback = false;  ///< rows do not fit `wanted`
  Format wanted = Format::kF32;
  ConversionError error;
};

struct QuantizeReport {
  uint64_t bytes_in = 0, bytes_out = 0;  ///< of tensors
  std::vector<QuantizedTensor> tensors;  ///< in file order
  std::vector<std::string> notes;
};

/// ConfigError: options or paths that cannot be honoured, a quantised source without allow_requantize. ModelError,
/// DeviceError: as convert_checkpoint.
QuantizeReport quantize_checkpoint(const QuantizeOptions& options, const ConvertProgress& progress = {});

}  // namespace ef
