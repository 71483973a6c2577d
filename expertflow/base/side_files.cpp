#include "expertflow/base/side_files.h"

#include "expertflow/base/io.h"

namespace ef {
namespace {

class FolderFiles final : public SideFiles {
 public:
  explicit FolderFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}
  std::optional<std::string> read(const std::string& name, uint64_t max_bytes) const override {
    if (!holds(name)) return std::nullopt;
    return read_text_file(folder_ / name, max_bytes);
  }
  bool holds(const std::string& name) const override { return std::filesystem::exists(folder_ / name); }
  std::string where(const std::string& name) const override { return (folder_ / name).string(); }

 private:
  const std::filesystem::path folder_;
};

}  // namespace

std::shared_ptr<const SideFiles> folder_files(const std::filesystem::path& folder) {
  return std::make_shared<FolderFiles>(folder);
}

}  // namespace ef
