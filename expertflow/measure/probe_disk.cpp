#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "expertflow/base/errors.h"
#include "expertflow/measure/probe.h"

namespace ef {

namespace {

constexpr uint64_t kBlock = 1 << 20;

struct Descriptor {
  explicit Descriptor(int descriptor) : fd(descriptor) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

struct Try {
  double bytes_per_second = 0;
  int error = 0;
};

// Readers take the file's blocks in turn, from block `first` on and around its end, until the time is up.
Try read_for(int fd, uint64_t blocks, uint64_t first, int readers, double seconds) {
  std::atomic<uint64_t> next{first}, bytes{0};
  std::atomic<int> error{0};
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  const auto read = [&] {
    const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(4096, kBlock), &std::free);
    while (buffer && error == 0 && elapsed() < seconds) {
      const ssize_t n = pread(fd, buffer.get(), kBlock, off_t(next++ % blocks * kBlock));
      if (n < 0) error = errno;
      if (n > 0) bytes += uint64_t(n);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < readers; ++i) threads.emplace_back(read);
  for (auto& thread : threads) thread.join();
  return {double(bytes) / elapsed(), error};
}

}  // namespace

DiskPeak measure_disk_read(const std::filesystem::path& file, double seconds_a_try) {
  DiskPeak peak;
  const Descriptor descriptor(open(file.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  struct stat status {};
  if (descriptor.fd < 0 || fstat(descriptor.fd, &status) != 0) {
    peak.reason = fmt::format("{}: O_DIRECT: {}", file.string(), std::strerror(errno));
    return peak;
  }
  const uint64_t blocks = uint64_t(status.st_size) / kBlock;
  if (blocks == 0) {
    peak.reason = fmt::format("{}: smaller than {} bytes", file.string(), kBlock);
    return peak;
  }
  constexpr int kReaders[] = {1, 4, 8, 16, 32};
  uint64_t first = 0;
  for (const int readers : kReaders) {
    const Try result = read_for(descriptor.fd, blocks, first, readers, seconds_a_try);
    if (result.error != 0) {
      peak.reason = fmt::format("{}: O_DIRECT: {}", file.string(), std::strerror(result.error));
      return peak;
    }
    if (result.bytes_per_second > peak.bytes_per_second) peak = {result.bytes_per_second, readers, ""};
    first += blocks / std::size(kReaders);  // elsewhere: what was just read may lie in a cache of the host
  }
  return peak;
}

double cached_share(const std::filesystem::path& file) {
  const Descriptor descriptor(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (descriptor.fd < 0 || fstat(descriptor.fd, &status) != 0 || status.st_size == 0) return -1;
  const size_t bytes = size_t(status.st_size), page = size_t(sysconf(_SC_PAGESIZE));
  void* at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor.fd, 0);
  if (at == MAP_FAILED) return -1;
  std::vector<unsigned char> held((bytes + page - 1) / page);
  const bool told = mincore(at, bytes, held.data()) == 0;
  munmap(at, bytes);
  if (!told) return -1;
  size_t count = 0;
  for (const unsigned char h : held) count += h & 1;
  return double(count) / double(held.size());
}

}  // namespace ef
