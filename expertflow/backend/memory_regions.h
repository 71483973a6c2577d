// The regions of a plan over one backend's memory. A region that has been reserved is one allocation, from which
// requests are cut; requests of the others are allocations of their own that are counted here. Either way every piece
// is on record, with the time from which and until which it was held.
#pragma once
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "expertflow/backend/backend.h"
#include "expertflow/backend/free_extents.h"

namespace ef {

struct RegionReport {
  Region region = Region::kStatic;
  uint64_t reserved = 0;  ///< 0: not reserved, pieces are allocations of their own
  uint64_t used = 0, peak = 0;
  uint64_t free = 0, largest_free = 0;  ///< of what is reserved; pieces begin at multiples of kRegionAlign
  double fragmentation = 0;             ///< 1 - largest_free / free
  size_t pieces = 0;                    ///< held now
};

/// One piece of memory and its life, in the time that was set.
struct MemoryPiece {
  MemoryUse use;
  uint64_t bytes = 0;
  uint64_t from = 0;
  std::optional<uint64_t> until;  ///< nothing while it is held
};

constexpr uint64_t kRegionAlign = 256;

/// Safe to call from several threads.
class MemoryRegions final : public MemoryOwner {
 public:
  /// From here to its end, what the backend allocates comes from this. The backend must outlive it, and it whatever it
  /// gave.
  explicit MemoryRegions(Backend& backend);
  ~MemoryRegions() override;
  MemoryRegions(const MemoryRegions&) = delete;
  MemoryRegions& operator=(const MemoryRegions&) = delete;

  /// Takes the region's memory at once; nothing may be held in it. DeviceError if the backend has not got it.
  void reserve(Region region, uint64_t bytes);
  /// DeviceError with the region's numbers if it has no extent of that length.
  Buffer allocate(uint64_t bytes, const MemoryUse& use);
  void release(std::byte* data, uint64_t size) noexcept override;

  /// Time is the caller's: 0 before the first step, then the step's number.
  void set_time(uint64_t now);

  RegionReport report(Region region) const;
  /// Longest held first, then largest; of those given back the latest kMostEnded.
  std::vector<MemoryPiece> pieces() const;
  uint64_t now() const;
  static constexpr size_t kMostEnded = 1024;

 private:
  struct Reserved {
    Buffer memory;
    FreeExtents free;
  };
  struct Held {
    MemoryPiece piece;
    Buffer own;  // empty in a reserved region
  };
  std::byte* cut(uint64_t bytes, const MemoryUse& use);
  [[noreturn]] void refuse(uint64_t bytes, const MemoryUse& use, const Reserved& r) const;

  Backend& backend_;
  mutable std::mutex mutex_;
  std::array<Reserved, kRegions> reserved_;
  std::array<uint64_t, kRegions> used_{}, peak_{};
  std::map<std::byte*, Held> held_;
  std::vector<MemoryPiece> ended_;  // a ring from oldest_ on once it is full
  size_t oldest_ = 0;
  uint64_t now_ = 0;
};

}  // namespace ef
