// A file being written under a temporary name: it appears under its own name complete, or not at all.
#pragma once
#include <filesystem>
#include <span>
#include <string>

namespace ef {

class OutputFile {
 public:
  /// Creates PATH.partial. DeviceError if that fails.
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile() { discard(); }
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Writes all bytes at offset. On an error removes the temporary file and throws DeviceError naming it.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  /// Extends (with zeros) or cuts to size, and flushes to the disk.
  void complete(uint64_t size);
  /// Renames to the final name. After complete().
  void publish();
  /// Removes the temporary file; nothing after publish().
  void discard() noexcept;

 private:
  [[noreturn]] void failed(const char* action, int error);

  std::filesystem::path path_, temporary_;
  int fd_ = -1;
};

}  // namespace ef
