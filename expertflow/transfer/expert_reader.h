// What the copy pipeline needs of a slow tier: fill a slot with an expert, or say why not.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/cache/expert_cache.h"
#include "expertflow/weights/expert_store.h"

namespace ef {

class ExpertReader {
 public:
  virtual ~ExpertReader() = default;
  /// Bytes read from the slow tier for one expert.
  virtual uint64_t file_bytes(ExpertKey key) const = 0;
  /// Fills the slot. Throws DeviceError (short read, EIO) or ModelError (bad content): the slot then holds no expert.
  /// Called by several threads at once for different experts, each with a lane of its own, counted from 0.
  virtual void fill(ExpertKey key, std::span<std::byte> slot, int lane) = 0;
};

/// Slot sizes of all decoder layers, dense ones included.
CacheGeometry geometry_of(const ExpertStore& store, int layers);

}  // namespace ef
