// Bytes at rest. A ByteSource is a random-access, read-only run of bytes; tests put faults in front of one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace ef {

class FileSource;

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;  ///< for messages: the path
  virtual uint64_t size() const = 0;            ///< bytes
  /// Reads exactly out.size() bytes at offset or throws DeviceError (short read, EIO) naming the file, the offset, what
  /// was asked and what came. Safe to call from several threads. Retries EINTR and partial reads itself.
  virtual void read(uint64_t offset, std::span<std::byte> out) const = 0;
  /// The file behind it, where one may read it by other means (ReadFile); null for anything else.
  virtual const FileSource* file() const { return nullptr; }
};

/// A file read with pread. Throws ModelError if it cannot be opened. A file that was written to or replaced in place
/// since it was opened is no longer the model that was checked: reads are refused with DeviceError from then on.
class FileSource final : public ByteSource {
 public:
  explicit FileSource(const std::filesystem::path& path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;
  const std::string& name() const override { return name_; }
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> out) const override;
  const FileSource* file() const override { return this; }
  int descriptor() const { return fd_; }
  /// DeviceError if the file was written to since it was opened. After a read: a change during it is seen too.
  void check_unchanged() const;

 private:
  std::string name_;
  uint64_t size_ = 0;
  int64_t modified_ = 0;  ///< st_mtim in nanoseconds
  int fd_ = -1;
};

/// Bytes held in memory (tests, fuzz targets).
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string name, std::span<const std::byte> bytes);
  const std::string& name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::string name_;
  std::span<const std::byte> bytes_;
};

/// Whole small text file (json, templates); throws ModelError when it is missing or larger than max_bytes.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes = 256u << 20);

}  // namespace ef
