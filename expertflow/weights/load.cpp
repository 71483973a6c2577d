#include "expertflow/weights/load.h"

#include <algorithm>
#include <new>

#include "expertflow/base/errors.h"
#include "expertflow/quant/tiles.h"

namespace ef {

AlignedBuffer::AlignedBuffer(uint64_t bytes) : size_(bytes) {
  // Allocators may end the program at absurd sizes (the address sanitizer does) instead of saying no.
  constexpr uint64_t kMost = uint64_t(1) << 39;
  EF_CHECK(bytes <= kMost, DeviceError, "cannot allocate {} bytes of host memory in one piece (at most {})", bytes,
           kMost);
  data_.reset(static_cast<std::byte*>(::operator new[](size_t(bytes), std::align_val_t(kAlignment), std::nothrow)));
  EF_CHECK(data_ != nullptr, DeviceError, "cannot allocate {} bytes of host memory", bytes);
}

void AlignedBuffer::Free::operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t(kAlignment)); }

AlignedBuffer load_tensor(const TensorDirectory& directory, const TensorInfo& tensor) {
  AlignedBuffer buffer(tensor.bytes);
  directory.read(tensor, 0, buffer.bytes());
  return buffer;
}

void for_each_rows(const TensorDirectory& directory, const TensorInfo& tensor, uint64_t max_bytes,
                   const std::function<void(int64_t, int64_t, std::span<const std::byte>)>& body) {
  const int64_t rows = tensor.rows();
  if (tensor.bytes == 0) return;
  const uint64_t row = tensor.bytes / uint64_t(rows);
  const int64_t fit = int64_t(max_bytes / row) / kTileRows * kTileRows;
  const int64_t step = std::min(rows, std::max(kTileRows, fit));
  AlignedBuffer buffer(uint64_t(step) * row);
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t n = std::min(step, rows - first);
    const std::span<std::byte> piece = buffer.bytes().first(size_t(n) * row);
    directory.read(tensor, uint64_t(first) * row, piece);
    body(first, n, piece);
  }
}

}  // namespace ef
