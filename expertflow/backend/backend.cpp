#include "expertflow/backend/backend.h"

#include <utility>

#include "expertflow/backend/memory_regions.h"

namespace ef {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Buffer::~Buffer() {
  if (data_) owner_->release(data_, size_);
}

std::string_view region_name(Region region) {
  switch (region) {
    case Region::kStatic:
      return "static";
    case Region::kDynamic:
      return "dynamic";
    case Region::kElastic:
      return "elastic";
  }
  return "";
}

Buffer Backend::allocate(uint64_t bytes, const MemoryUse& use) {
  return regions_ ? regions_->allocate(bytes, use) : allocate_apart(bytes);
}

bool op_takes(Op op, Format format) {
  switch (op) {
    case Op::kEmbed:
    case Op::kLinear:
    case Op::kHeadLinear:
    case Op::kExperts:
      return has_arithmetic(format);
    case Op::kStoreKv:
    case Op::kAttention:
      return format == Format::kF32 || format == Format::kF16 || format == Format::kBF16;
    default:
      return format == Format::kF32;
  }
}

}  // namespace ef
