#include "expertflow/base/read_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "expertflow/base/errors.h"

namespace ef {

namespace {

constexpr uint64_t kUsualAlignment = 4096;  // holds for every sector size in use where the kernel does not say

struct Alignment {
  uint64_t offset = kUsualAlignment, memory = kUsualAlignment;
};

// What the kernel says (Linux 6.1 on, some filesystems); 0 where it says that there are no direct reads.
Alignment ask_alignment([[maybe_unused]] int fd) {
#ifdef STATX_DIOALIGN
  struct statx st {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 && (st.stx_mask & STATX_DIOALIGN))
    return {st.stx_dio_offset_align, st.stx_dio_mem_align};
#endif
  return {};
}

std::string errno_text(int error) { return fmt::format("{} (errno {})", std::strerror(error), error); }

// The same file again, whatever its name has come to mean since. -errno if it cannot be had.
int reopen(const FileSource& file, int flags) {
  const int fd = ::open(fmt::format("/proc/self/fd/{}", file.descriptor()).c_str(), flags);
  if (fd >= 0 || errno != ENOENT) return fd >= 0 ? fd : -errno;
  const int by_name = ::open(file.name().c_str(), flags);  // no /proc here
  if (by_name < 0) return -errno;
  struct stat ours {
  }, theirs{};
  if (::fstat(file.descriptor(), &ours) == 0 && ::fstat(by_name, &theirs) == 0 && ours.st_dev == theirs.st_dev &&
      ours.st_ino == theirs.st_ino)
    return by_name;
  ::close(by_name);
  return -ESTALE;
}

}  // namespace

ReadFile::ReadFile(const ByteSource& source, DirectIo mode, const IoFaults& faults) : source_(source) {
  const FileSource* file = source.file();
  if (!file) {
    why_ = "not a file";
    return;
  }
  fd_ = file->descriptor();
  if (mode == DirectIo::kOff) {
    why_ = "asked for";
    return;
  }
  if (open_direct(*file, faults)) return;
  offset_alignment_ = memory_alignment_ = 1;
  EF_CHECK(mode != DirectIo::kOn, DeviceError, "{}: direct reads were asked for (--direct-io on) and are refused: {}",
           name(), why_);
}

bool ReadFile::open_direct(const FileSource& file, const IoFaults& faults) {
  const int refused = faults.open_direct ? faults.open_direct() : 0;
  const int fd = refused ? -refused : reopen(file, O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (fd < 0) {
    why_ = fmt::format("O_DIRECT: {}", errno_text(-fd));
    return false;
  }
  const Alignment alignment = ask_alignment(fd);
  int error = 0;
  if (alignment.offset == 0 || alignment.memory == 0) {
    why_ = "O_DIRECT: the filesystem has no direct reads for this file";
  } else {
    // Some filesystems take the flag and refuse the read.
    const uint64_t bytes = std::max(alignment.offset, kUsualAlignment);
    const PageBuffer probe(bytes + alignment.memory);
    const auto address = reinterpret_cast<uintptr_t>(probe.data());
    std::byte* to = probe.data() + (alignment.memory - address % alignment.memory) % alignment.memory;
    while (::pread(fd, to, bytes, 0) < 0 && (error = errno) == EINTR) error = 0;
    if (error) why_ = fmt::format("O_DIRECT: reading {} bytes at offset 0: {}", bytes, errno_text(error));
  }
  if (!why_.empty()) {
    ::close(fd);
    return false;
  }
  fd_ = fd;
  owned_ = direct_ = true;
  offset_alignment_ = alignment.offset;
  memory_alignment_ = alignment.memory;
  return true;
}

ReadFile::~ReadFile() {
  if (owned_) ::close(fd_);
}

void ReadFile::check_unchanged() const {
  if (const FileSource* file = source_.file()) file->check_unchanged();
}

PageBuffer::PageBuffer(uint64_t bytes) : size_((bytes + kAlignment - 1) / kAlignment * kAlignment) {
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EF_CHECK(data != MAP_FAILED, DeviceError, "cannot allocate {} bytes of host memory", size_);
  ::madvise(data, size_, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(data);
}

PageBuffer::~PageBuffer() {
  if (data_) ::munmap(data_, size_);
}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace ef
