#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "expertflow/base/errors.h"
#include "expertflow/measure/probe.h"

namespace ef {

namespace {

#if defined(__x86_64__)
#define EF_WIDE __attribute__((target("avx512f")))
#define EF_MIDDLE __attribute__((target("avx2")))
#endif
typedef uint64_t Lanes8 __attribute__((vector_size(64)));
typedef uint64_t Lanes4 __attribute__((vector_size(32)));

constexpr uint64_t kChunk = 4 << 20, kLeast = 256 << 20;

uint64_t fold(const uint64_t* lanes, size_t n) {
  uint64_t all = 0;
  for (size_t i = 0; i < n; ++i) all |= lanes[i];
  return all;
}

// The same loop for every width: eight accumulators, and a prefetch that runs ahead of the hardware's own.
#define EF_READ_LOOP(Lanes)                                                         \
  const auto* p = reinterpret_cast<const Lanes*>(from);                             \
  const size_t n = bytes / sizeof(Lanes);                                           \
  Lanes a[8] = {};                                                                  \
  for (size_t i = 0; i + 8 <= n; i += 8) {                                          \
    if (ahead)                                                                      \
      for (size_t j = 0; j < 8 * sizeof(Lanes); j += 64)                            \
        __builtin_prefetch(reinterpret_cast<const char*>(p + i) + ahead + j, 0, 0); \
    for (size_t j = 0; j < 8; ++j) a[j] |= p[i + j];                                \
  }                                                                                 \
  return fold(reinterpret_cast<const uint64_t*>(a), sizeof(a) / (sizeof(uint64_t)))

uint64_t read_plain(const std::byte* from, size_t bytes, size_t ahead) { EF_READ_LOOP(uint64_t); }
#if defined(__x86_64__)
EF_MIDDLE uint64_t read_avx2(const std::byte* from, size_t bytes, size_t ahead) { EF_READ_LOOP(Lanes4); }
EF_WIDE uint64_t read_avx512(const std::byte* from, size_t bytes, size_t ahead) { EF_READ_LOOP(Lanes8); }
#endif

using ReadLoop = uint64_t (*)(const std::byte*, size_t, size_t);
ReadLoop widest_loop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
  return read_plain;
}

class Pages {
 public:
  explicit Pages(uint64_t bytes) : bytes_(bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EF_CHECK(at != MAP_FAILED, DeviceError, "memory probe: {} bytes could not be had: {}", bytes, std::strerror(errno));
    madvise(at, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(at);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() { return data_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_;
};

}  // namespace

MemoryPeak measure_memory_read(ThreadPool& pool, uint64_t most_bytes) {
  constexpr int kPasses = 6;
  const uint64_t cache = machine_facts().last_level_cache;
  const uint64_t wanted = std::max<uint64_t>(4 * cache, kLeast);
  const int64_t chunks = int64_t(std::max<uint64_t>(1, (std::min(most_bytes, wanted) + kChunk - 1) / kChunk));
  MemoryPeak peak;
  peak.buffer_bytes = uint64_t(chunks) * kChunk;
  peak.beyond_caches = peak.buffer_bytes >= 4 * cache;
  Pages pages(peak.buffer_bytes);
  pool.parallel_for(chunks, 1, [&](int64_t begin, int64_t end, int) {
    std::memset(pages.data() + uint64_t(begin) * kChunk, 1, uint64_t(end - begin) * kChunk);
  });
  std::atomic<uint64_t> seen{0};
  const ReadLoop loop = widest_loop();
  for (const size_t ahead : {size_t(0), size_t(2048), size_t(8192)})
    for (int pass = 0; pass < kPasses; ++pass) {
      const auto start = std::chrono::steady_clock::now();
      pool.parallel_for(chunks, 1, [&](int64_t begin, int64_t end, int) {
        seen |= loop(pages.data() + uint64_t(begin) * kChunk, uint64_t(end - begin) * kChunk, ahead);
      });
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      peak.bytes_per_second = std::max(peak.bytes_per_second, double(peak.buffer_bytes) / seconds);
    }
  EF_CHECK(seen == 0x0101010101010101u, DeviceError, "memory probe: read {:#x}, expected what was written",
           seen.load());
  return peak;
}

}  // namespace ef
