// From the list of sources to reads: which ranges of which files an expert needs, cut into units that can be read and
// unpacked apart.
#pragma once
#include <vector>

#include "expertflow/weights/expert_store.h"

namespace ef {

/// A piece that does not end with its part has a multiple of so many rows: kernels' tiles are not cut.
inline constexpr int64_t kRowGroup = 16;

/// Bytes of a unit, about, and of one read: with few experts missing at a time a queue is deep only if reads are small,
/// and what arrives last is unpacked while the disk has nothing to do. Measured with bench/disk --batch.
inline constexpr uint64_t kUnitBytes = 512 << 10;

/// Bytes of a tensor that belong to one expert.
struct Slice {
  const TensorInfo* tensor = nullptr;
  uint64_t begin = 0, bytes = 0;  ///< within the tensor
  uint64_t file_offset() const { return tensor->offset + begin; }
};
inline bool is_scales(ExpertRole role) {
  return role == ExpertRole::kGateScales || role == ExpertRole::kUpScales || role == ExpertRole::kDownScales;
}

Slice slice_of(const TensorInfo& tensor, const PartSource& source);

std::vector<FillUnit> plan_fill(const ExpertLayout& layout, const std::vector<PartSource>& sources);

/// raw: where each of the unit's ranges lies in memory. file: name of the sources' file, for messages.
void unpack_piece(const FillPiece& piece, const PartSource& source, const ExpertPart& part,
                  std::span<const std::byte* const> raw, std::byte* slot, const std::string& file);

/// From the layout that a part has to the one that its slot wants, in place. slot: the slot's beginning.
void change_layout(const ExpertPart& part, MatrixLayout from, std::byte* slot);

}  // namespace ef
