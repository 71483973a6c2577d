#include "expertflow/base/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "expertflow/base/errors.h"

namespace ef {

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)), temporary_(path_) {
  temporary_ += ".partial";
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  EF_CHECK(fd_ >= 0, DeviceError, "{}: cannot create: {}", temporary_.string(), std::strerror(errno));
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), temporary_(std::move(other.temporary_)), fd_(std::exchange(other.fd_, -1)) {
  other.temporary_.clear();
}

void OutputFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  EF_CHECK(fd_ >= 0, DeviceError, "{}: an earlier write failed", path_.string());
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) failed("writing", n < 0 ? errno : ENOSPC);
    offset += uint64_t(n);
    bytes = bytes.subspan(size_t(n));
  }
}

void OutputFile::complete(uint64_t size) {
  EF_CHECK(fd_ >= 0, DeviceError, "{}: an earlier write failed", path_.string());
  if (::ftruncate(fd_, off_t(size)) != 0) failed("resizing", errno);
  if (::fsync(fd_) != 0) failed("flushing", errno);
  // The descriptor stays open: it marks the temporary file as ours until publish or discard.
}

void OutputFile::publish() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) failed("renaming", errno);
  temporary_.clear();
  discard();
}

void OutputFile::discard() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void OutputFile::failed(const char* action, int error) {
  const std::string name = temporary_.string();
  discard();
  fail<DeviceError>("{}: {} failed: {}", name, action, std::strerror(error));
}

}  // namespace ef
