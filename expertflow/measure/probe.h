// What this machine can do at best: peaks that figures are divided by. Measured for a moment at a time, the best of
// several tries; they say nothing about any model.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "expertflow/base/thread_pool.h"
#include "expertflow/measure/work.h"

namespace ef {

struct MemoryPeak {
  double bytes_per_second = 0;
  uint64_t buffer_bytes = 0;  ///< what was read over and over
  bool beyond_caches = true;  ///< the buffer is at least four times the last-level cache
};
/// Reads a buffer of at most `most_bytes` with all threads of the pool, huge pages asked for. DeviceError if it cannot
/// be had.
MemoryPeak measure_memory_read(ThreadPool& pool, uint64_t most_bytes = 2ull << 30);

/// Operations a second of all threads of the pool together; 0: this build has no loop for it.
struct ComputePeak {
  double blocks = 0;  ///< 8-bit integer products and sums
  double half = 0;    ///< the faster of 16-bit float pairs, where the processor has them, and float32
  double f32 = 0;
};
/// isa: as --isa names it. "reference" has no peak: it is there to be right.
ComputePeak measure_compute(ThreadPool& pool, const std::string& isa);
/// Seconds that the operations take at the peaks; 0 if one that is needed is not known.
double seconds_at_peak(const Operations& operations, const ComputePeak& peak);

struct DevicePeaks {
  MemoryPeak memory;    ///< the device's, read by all multiprocessors
  ComputePeak compute;  ///< 16-bit matrix products, which stand for all: nothing that pays is faster
};
/// Of a CUDA device. ConfigError, DeviceError: as cuda_peaks().
DevicePeaks measure_device(int device);

struct DiskPeak {
  double bytes_per_second = 0;  ///< 0: not measured
  int readers = 0;              ///< how many reads were under way at the best
  std::string reason;           ///< why it could not be measured
};
/// Reads the file past the page cache (O_DIRECT) in blocks of 1 MiB with more and more readers.
DiskPeak measure_disk_read(const std::filesystem::path& file, double seconds_a_try = 0.3);

/// Share of a file's pages that the page cache holds, 0 to 1; negative if that cannot be told.
double cached_share(const std::filesystem::path& file);

struct MachineFacts {
  std::string cpu, kernel;
  int processors = 0;             ///< that this process may use
  uint64_t memory_bytes = 0;      ///< of the machine
  uint64_t last_level_cache = 0;  ///< bytes, 0 unknown
};
MachineFacts machine_facts();

}  // namespace ef
