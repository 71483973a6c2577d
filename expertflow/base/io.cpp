#include "expertflow/base/io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "expertflow/base/errors.h"

namespace ef {

namespace {
int64_t modification_time(const struct stat& st) {
  return int64_t(st.st_mtim.tv_sec) * 1'000'000'000 + st.st_mtim.tv_nsec;
}
}  // namespace

FileSource::FileSource(const std::filesystem::path& path) : name_(path.string()) {
  fd_ = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC);
  EF_CHECK(fd_ >= 0, ModelError, "{}: cannot open: {}", name_, std::strerror(errno));
  struct stat st {};
  if (::fstat(fd_, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd_);
    fail<ModelError>("{}: expected a regular file", name_);
  }
  size_ = uint64_t(st.st_size);
  modified_ = modification_time(st);
}

FileSource::~FileSource() { ::close(fd_); }

void FileSource::read(uint64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    ssize_t n = ::pread(fd_, out.data() + done, out.size() - done, off_t(offset + done));
    if (n < 0 && errno == EINTR) continue;
    EF_CHECK(n >= 0, DeviceError, "{}: reading {} bytes at offset {} failed: {}", name_, out.size(), offset,
             std::strerror(errno));
    EF_CHECK(n != 0, DeviceError, "{}: short read at offset {}: expected {} bytes, found {} (file has {})", name_,
             offset, out.size(), done, size_);
    done += size_t(n);
  }
  check_unchanged();
}

void FileSource::check_unchanged() const {
  struct stat st {};
  EF_CHECK(::fstat(fd_, &st) == 0, DeviceError, "{}: cannot stat: {}", name_, std::strerror(errno));
  EF_CHECK(modification_time(st) == modified_ && uint64_t(st.st_size) == size_, DeviceError,
           "{}: the file has changed since it was opened ({} bytes then, {} now): its bytes belong to another model",
           name_, size_, st.st_size);
}

MemorySource::MemorySource(std::string name, std::span<const std::byte> bytes)
    : name_(std::move(name)), bytes_(bytes) {}

void MemorySource::read(uint64_t offset, std::span<std::byte> out) const {
  EF_CHECK(offset <= bytes_.size() && out.size() <= bytes_.size() - offset, DeviceError,
           "{}: short read at offset {}: expected {} bytes, found {}", name_, offset, out.size(),
           offset < bytes_.size() ? bytes_.size() - offset : 0);
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
}

std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes) {
  FileSource file(path);
  EF_CHECK(file.size() <= max_bytes, ModelError, "{}: expected at most {} bytes, found {}", file.name(), max_bytes,
           file.size());
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace ef
