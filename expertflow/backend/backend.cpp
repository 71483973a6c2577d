#include "expertflow/backend/backend.h"

#include <utility>

namespace ef {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Buffer::~Buffer() {
  if (data_) backend_->release(data_, size_);
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
