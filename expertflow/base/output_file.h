// A file being written under a temporary name: it appears under its own name complete, or not at all.
#pragma once
#include <filesystem>
#include <span>
#include <string>

namespace ef {

/// A device, a pipe, or a descriptor of this process by name: written through when complete, never replaced.
bool is_output_stream(const std::filesystem::path& path);
/// The file that a name leads to, links followed, whether it exists or not.
std::filesystem::path output_target(const std::filesystem::path& path);
/// The name that a file has until it is complete.
std::filesystem::path partial_of(const std::filesystem::path& path);

class OutputFile {
 public:
  enum class IfBusy { kRefuse, kWait };

  /// Creates PATH.partial, beside the file that a link leads to; one left by a process that died is taken over.
  /// DeviceError if that fails, and where another process is writing the same file unless told to wait for it.
  explicit OutputFile(const std::filesystem::path& path, IfBusy busy = IfBusy::kRefuse);
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
  void lock(IfBusy busy);
  void copy_to_stream();

  std::filesystem::path path_, temporary_;  // temporary_: empty for a stream, whose bytes wait in memory
  int fd_ = -1;
};

}  // namespace ef
