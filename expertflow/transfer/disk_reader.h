// Experts from the files of a checkpoint. A slot is made in two steps: raw bytes are read to aligned staging memory,
// many reads at once and around the page cache where that is possible, and each unit is unpacked into the slot as it
// arrives, while the disk works on the others. A packed file's experts skip staging: one read fills the slot.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "expertflow/base/read_queue.h"
#include "expertflow/transfer/expert_reader.h"

namespace ef {

enum class IoKind : uint8_t {
  kAuto,  ///< io_uring where there is one
  kUring,
  kPread
};

struct DiskReaderOptions {
  IoKind io = IoKind::kAuto;
  DirectIo direct = DirectIo::kAuto;
  int lanes = 4;    ///< experts that are read at once
  int depth = 32;   ///< reads in the kernel's hands at once, all lanes together (io_uring; pread has one a lane)
  IoFaults faults;  ///< tests only
};

/// How experts are read: what was chosen, and what was refused on the way.
struct IoState {
  std::string kind;         ///< "io_uring", "pread"
  bool direct = false;      ///< every file that holds experts is read around the page cache
  bool registered = false;  ///< staging memory is pinned once
  int depth = 0;            ///< reads at once
  struct Note {
    bool warning = false;
    std::string text;
  };
  std::vector<Note> notes;   ///< one for each thing refused, with errno
  std::string text() const;  ///< "io_uring, direct, registered buffers, 32 at once"
};

class DiskReader final : public ExpertReader {
 public:
  /// store must outlive it. ConfigError: lanes or depth below 1. DeviceError: io_uring or direct reads were asked for
  /// and are refused.
  DiskReader(const ExpertStore& store, const DiskReaderOptions& options);

  uint64_t file_bytes(ExpertKey key) const override { return store_.file_bytes(key); }
  void fill(ExpertKey key, std::span<std::byte> slot, int lane) override;

  const IoState& state() const { return state_; }
  /// Experts of packed files whose checksum was wrong and that were read once more.
  uint64_t rereads() const { return rereads_.load(std::memory_order_relaxed); }

  /// Memory that so many lanes take.
  static uint64_t staging_bytes(const ExpertStore& store, int lanes);

 private:
  struct Lane {
    std::unique_ptr<ReadQueue> queue;
    PageBuffer staging;
  };

  void open_files(const DiskReaderOptions& options);
  void open_queues(const DiskReaderOptions& options);
  void register_staging();
  void read_units(ExpertKey key, std::span<std::byte> slot, int lane);
  void read_image(ExpertKey key, const ExpertImage& image, std::span<std::byte> slot, int lane);
  size_t place_batch(const std::vector<FillUnit>& units, size_t first, uint64_t most, Lane& lane,
                     std::vector<ReadRequest>& requests) const;

  const ExpertStore& store_;
  std::vector<std::unique_ptr<ReadFile>> files_;  // by index in the directory; null where no expert lies
  std::vector<Lane> lanes_;
  IoState state_;
  std::atomic<uint64_t> rereads_{0};
};

}  // namespace ef
