// What the copy pipeline needs of a slow tier: fill a slot with an expert, or say why not.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/cache/expert_cache.h"
#include "expertflow/weights/expert_store.h"

namespace ef {

/// Called between the parts of a fill, on its thread, with the bytes that have come: it may wait, and it may throw to
/// end the fill. Returns how many bytes the next part has at most.
using FillCheckpoint = std::function<uint64_t(int lane, uint64_t done)>;

class ExpertReader {
 public:
  virtual ~ExpertReader() = default;
  /// Before the first fill. A reader that fills in one go need not call it.
  void set_checkpoint(FillCheckpoint checkpoint) { checkpoint_ = std::move(checkpoint); }
  /// Bytes read from the slow tier for one expert.
  virtual uint64_t file_bytes(ExpertKey key) const = 0;
  /// Fills the slot. Throws DeviceError (short read, EIO) or ModelError (bad content): the slot then holds no expert.
  /// Called by several threads at once for different experts, each with a lane of its own, counted from 0.
  virtual void fill(ExpertKey key, std::span<std::byte> slot, int lane) = 0;

 protected:
  uint64_t checkpoint(int lane, uint64_t done) const { return checkpoint_ ? checkpoint_(lane, done) : UINT64_MAX; }

 private:
  FillCheckpoint checkpoint_;
};

/// Slot sizes of all decoder layers, dense ones included.
CacheGeometry geometry_of(const ExpertStore& store, int layers);

}  // namespace ef
