// Which bytes of a range are free: the first extent that is long enough serves, at its head, and neighbours join the
// moment they are free. Counts only, holds no memory.
#pragma once
#include <cstdint>
#include <map>
#include <optional>

namespace ef {

class FreeExtents {
 public:
  FreeExtents() = default;
  explicit FreeExtents(uint64_t bytes);

  /// Offset of so many bytes (at least 1); nothing if no extent is that long.
  std::optional<uint64_t> take(uint64_t bytes);
  /// Exactly what take() gave.
  void give(uint64_t offset, uint64_t bytes);

  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest() const;
  size_t count() const { return extents_.size(); }
  /// Share of the free bytes that one request cannot have: 1 - largest / free, 0 if nothing is free.
  double fragmentation() const;

 private:
  std::map<uint64_t, uint64_t> extents_;  // offset -> bytes
  uint64_t free_bytes_ = 0;
};

}  // namespace ef
