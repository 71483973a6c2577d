#include "expertflow/base/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "expertflow/base/errors.h"

namespace ef {

namespace {
namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // as Linux

fs::path link_followed(const fs::path& at) {
  std::error_code ignored;
  return at.parent_path() / fs::read_symlink(at, ignored);
}

// Of /dev/stdout and its like; else -1. The shell's file behind one is written where the output stands.
int descriptor_of(fs::path at) {
  std::error_code ignored;
  for (int i = 0; i < kMostLinks; ++i, at = link_followed(at)) {
    const std::string name = at.filename().string();
    if ((at.parent_path() == "/proc/self/fd" || at.parent_path() == "/dev/fd") && !name.empty() && name.size() < 9 &&
        name.find_first_not_of("0123456789") == std::string::npos)
      return std::atoi(name.c_str());
    if (!fs::is_symlink(at, ignored)) break;
  }
  return -1;
}
}  // namespace

bool is_output_stream(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  return descriptor_of(path) >= 0 || (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status));
}

fs::path output_target(const fs::path& path) {
  std::error_code ignored;
  fs::path at = path;
  for (int i = 0; i < kMostLinks && fs::is_symlink(at, ignored); ++i) at = link_followed(at);
  return at;
}

fs::path partial_of(const fs::path& path) {
  fs::path partial = path;
  return partial += ".partial";
}

OutputFile::OutputFile(const fs::path& path, IfBusy busy) : path_(path) {
  if (is_output_stream(path)) {
    fd_ = ::memfd_create("output", MFD_CLOEXEC);
    if (fd_ < 0) failed("keeping the output in memory", errno);
    return;
  }
  path_ = output_target(path);
  temporary_ = partial_of(path_);
  lock(busy);
  if (::ftruncate(fd_, 0) != 0) failed("emptying", errno);
}

// The lock is on the file, the name may pass to another: both have to be the same once it is held.
void OutputFile::lock(IfBusy busy) {
  for (struct stat ours{}, named{};;) {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    EF_CHECK(fd_ >= 0, DeviceError, "{}: cannot create: {}", temporary_.string(), std::strerror(errno));
    if (::fstat(fd_, &ours) != 0 || !S_ISREG(ours.st_mode)) {
      ::close(std::exchange(fd_, -1));
      fail<DeviceError>("{}: cannot create: something else has this name", temporary_.string());
    }
    int result = 0;
    do result = ::flock(fd_, LOCK_EX | (busy == IfBusy::kRefuse ? LOCK_NB : 0));
    while (result != 0 && errno == EINTR);
    if (result != 0 && errno == EWOULDBLOCK) {
      ::close(std::exchange(fd_, -1));
      fail<DeviceError>("{}: another process is writing this file", path_.string());
    }
    // Where a file system has no locks, a file is written without.
    if (::stat(temporary_.c_str(), &named) == 0 && ours.st_dev == named.st_dev && ours.st_ino == named.st_ino) return;
    ::close(std::exchange(fd_, -1));
  }
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

void OutputFile::copy_to_stream() {
  std::fflush(stdout);
  const int known = descriptor_of(path_);
  const int out = known >= 0 ? ::dup(known) : ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  int error = out < 0 ? errno : 0;
  std::byte buffer[1 << 14];
  ssize_t size = 0;
  for (off_t at = 0; error == 0 && (size = ::pread(fd_, buffer, sizeof(buffer), at)) > 0;) {
    const ssize_t n = ::write(out, buffer, size_t(size));
    if (n >= 0)
      at += n;
    else if (errno != EINTR)
      error = errno;
  }
  if (out >= 0) ::close(out);
  if (error != 0) failed("writing", error);
}

void OutputFile::publish() {
  if (temporary_.empty()) {
    copy_to_stream();
    return discard();
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) failed("renaming", errno);
  temporary_.clear();
  discard();
}

void OutputFile::discard() noexcept {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());  // while it is locked: who waits for it makes another
  temporary_.clear();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void OutputFile::failed(const char* action, int error) {
  const std::string name = (temporary_.empty() ? path_ : temporary_).string();
  discard();
  fail<DeviceError>("{}: {} failed: {}", name, action, std::strerror(error));
}

}  // namespace ef
