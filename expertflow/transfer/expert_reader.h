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
  /// Fills the slot; staging is scratch that the caller keeps from call to call. Throws DeviceError (short read, EIO):
  /// the slot then holds no expert. Called by several threads at once, for different experts.
  virtual void fill(ExpertKey key, std::span<std::byte> slot, std::vector<std::byte>& staging) const = 0;
};

/// Reads from the files of a checkpoint. The store must outlive it.
class StoreReader final : public ExpertReader {
 public:
  explicit StoreReader(const ExpertStore& store) : store_(store) {}
  uint64_t file_bytes(ExpertKey key) const override;
  void fill(ExpertKey key, std::span<std::byte> slot, std::vector<std::byte>& staging) const override;

 private:
  const ExpertStore& store_;
};

/// Slot sizes of all decoder layers, dense ones included.
CacheGeometry geometry_of(const ExpertStore& store, int layers);

}  // namespace ef
