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

}  // namespace ef
