// The small files beside a model's weights (config, tokenizer, chat template): those of a folder, or those that a
// packed file holds.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace ef {

class SideFiles {
 public:
  virtual ~SideFiles() = default;
  /// The file's content; nothing if there is no such file. ModelError if it is larger than max_bytes.
  virtual std::optional<std::string> read(const std::string& name, uint64_t max_bytes = 256u << 20) const = 0;
  virtual bool holds(const std::string& name) const = 0;
  virtual std::string where(const std::string& name) const = 0;  ///< for messages: "folder/config.json"
};

std::shared_ptr<const SideFiles> folder_files(const std::filesystem::path& folder);

}  // namespace ef
