// A file as a read queue sees it: opened a second time for reads that go around the page cache (O_DIRECT), with the
// alignment that such reads must keep, or the reason why they go through it.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "expertflow/base/io.h"

namespace ef {

enum class DirectIo : uint8_t {
  kAuto,  ///< around the page cache where the filesystem allows it
  kOn,    ///< the same, and an error where it does not
  kOff
};

/// Answers that tests put in the kernel's place.
struct IoFaults {
  std::function<int()> open_direct;  ///< errno of opening with O_DIRECT, 0: ask the kernel
  std::function<int()> create_ring;  ///< errno of io_uring_setup
  std::function<int()> pin_memory;   ///< errno of registering buffers
  /// Of one read, with what came: bytes, or -errno.
  std::function<int64_t(uint64_t offset, std::span<std::byte> came, int64_t result)> result;
};

class ReadFile {
 public:
  /// source must outlive it. A source that is no file (memory, tests' faults) is read through the source itself.
  /// DeviceError, naming the file and errno, if mode is kOn and direct reads are refused.
  ReadFile(const ByteSource& source, DirectIo mode, const IoFaults& faults = {});
  ~ReadFile();
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;

  const ByteSource& source() const { return source_; }
  const std::string& name() const { return source_.name(); }
  int descriptor() const { return fd_; }  ///< -1: not a file, use source()
  bool direct() const { return direct_; }
  const std::string& why_buffered() const { return why_; }  ///< empty if direct
  /// Offsets and lengths of reads are multiples of it; 1 if buffered.
  uint64_t offset_alignment() const { return offset_alignment_; }
  /// Addresses that are read to are multiples of it; 1 if buffered.
  uint64_t memory_alignment() const { return memory_alignment_; }
  /// FileSource::check_unchanged(); nothing for other sources.
  void check_unchanged() const;

 private:
  bool open_direct(const FileSource& file, const IoFaults& faults);

  const ByteSource& source_;
  int fd_ = -1;
  bool owned_ = false;
  bool direct_ = false;
  uint64_t offset_alignment_ = 1, memory_alignment_ = 1;
  std::string why_;
};

/// Host memory in whole pages, for direct reads: huge pages where there are any. Move-only.
class PageBuffer {
 public:
  static constexpr uint64_t kAlignment = 4096;
  PageBuffer() = default;
  /// DeviceError, naming the size, if there is not so much memory.
  explicit PageBuffer(uint64_t bytes);
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept { *this = std::move(other); }
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_t(size_)}; }

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace ef
