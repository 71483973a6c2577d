// A checkpoint as found on disk: a Hugging Face folder, a GGUF, or either of them packed (packed.h). Opens headers and
// small json files only.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>

#include "expertflow/weights/gguf.h"
#include "expertflow/weights/packed.h"
#include "expertflow/weights/tensor_directory.h"

namespace ef {

struct Checkpoint {
  enum class Kind { kHuggingFace, kGguf };
  Kind kind =
      Kind::kHuggingFace;      ///< how config, tokenizer and tensor names are written; of a packed file: its source's
  std::filesystem::path path;  ///< folder, first GGUF shard, or packed file
  TensorDirectory directory;
  nlohmann::json config;                  ///< config.json (Hugging Face)
  nlohmann::json generation_config;       ///< generation_config.json, null if absent
  GgufHeader gguf;                        ///< GGUF only
  std::shared_ptr<const SideFiles> side;  ///< Hugging Face: tokenizer and other small files; null: those in `path`
  std::optional<PackedIndex> packed;      ///< packed only: `directory` holds no experts then, packed->layers does

  std::shared_ptr<const SideFiles> side_files() const { return side ? side : folder_files(path); }
};

/// path: a folder with config.json and safetensors, a *.safetensors / index file inside one, a .gguf (any shard), a
/// packed file, or a folder that holds exactly one GGUF model. Anything else is a ModelError that says what was
/// expected and what was found.
Checkpoint open_checkpoint(const std::filesystem::path& path);

}  // namespace ef
