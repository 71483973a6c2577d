// A checkpoint as found on disk: a Hugging Face folder or a GGUF. Opens headers and small json files only.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>

#include "expertflow/weights/gguf.h"
#include "expertflow/weights/tensor_directory.h"

namespace ef {

struct Checkpoint {
  enum class Kind { kHuggingFace, kGguf };
  Kind kind = Kind::kHuggingFace;
  std::filesystem::path path;  ///< folder, or first GGUF shard
  TensorDirectory directory;
  nlohmann::json config;             ///< config.json (Hugging Face)
  nlohmann::json generation_config;  ///< generation_config.json, null if absent
  GgufHeader gguf;                   ///< GGUF only
};

/// path: a folder with config.json and safetensors, a *.safetensors / index file inside one, a .gguf (any shard), or a
/// folder that holds exactly one GGUF model. Anything else is a ModelError that says what was expected and what was
/// found.
Checkpoint open_checkpoint(const std::filesystem::path& path);

}  // namespace ef
