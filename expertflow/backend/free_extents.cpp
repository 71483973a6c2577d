#include "expertflow/backend/free_extents.h"

#include <algorithm>

#include "expertflow/base/errors.h"

namespace ef {

FreeExtents::FreeExtents(uint64_t bytes) : free_bytes_(bytes) {
  if (bytes > 0) extents_.emplace(0, bytes);
}

std::optional<uint64_t> FreeExtents::take(uint64_t bytes) {
  EF_DCHECK(bytes > 0);
  const auto it = std::find_if(extents_.begin(), extents_.end(), [&](const auto& e) { return e.second >= bytes; });
  if (it == extents_.end()) return std::nullopt;
  const auto [offset, length] = *it;
  extents_.erase(it);
  if (length > bytes) extents_.emplace(offset + bytes, length - bytes);
  free_bytes_ -= bytes;
  return offset;
}

void FreeExtents::give(uint64_t offset, uint64_t bytes) {
  free_bytes_ += bytes;
  const auto after = extents_.lower_bound(offset);
  EF_DCHECK(after == extents_.end() || offset + bytes <= after->first);
  if (after != extents_.begin()) {
    const auto before = std::prev(after);
    EF_DCHECK(before->first + before->second <= offset);
    if (before->first + before->second == offset) {
      bytes += before->second, offset = before->first;
      extents_.erase(before);
    }
  }
  if (after != extents_.end() && offset + bytes == after->first) {
    bytes += after->second;
    extents_.erase(after);
  }
  extents_.emplace(offset, bytes);
}

uint64_t FreeExtents::largest() const {
  uint64_t most = 0;
  for (const auto& [offset, bytes] : extents_) most = std::max(most, bytes);
  return most;
}

double FreeExtents::fragmentation() const {
  return free_bytes_ == 0 ? 0. : 1. - double(largest()) / double(free_bytes_);
}

}  // namespace ef
