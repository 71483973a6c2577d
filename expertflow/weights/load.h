// Owned aligned bytes on the host, and reading of tensors in pieces of bounded size.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "expertflow/base/align.h"
#include "expertflow/weights/tensor_directory.h"

namespace ef {

/// Host memory of a fixed size, 64-byte aligned (a cache line, and the widest vector). Contents begin undefined.
/// Move-only.
class AlignedBuffer {
 public:
  static constexpr size_t kAlignment = 64;
  AlignedBuffer() = default;
  /// DeviceError, naming the size, if there is not so much memory.
  explicit AlignedBuffer(uint64_t bytes);

  std::byte* data() const { return data_.get(); }
  uint64_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data(), size_t(size_)}; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  uint64_t size_ = 0;
};

/// Room that bytes take where what lies behind them is to be aligned as well.
inline uint64_t aligned(uint64_t bytes) { return round_up(bytes, AlignedBuffer::kAlignment); }

/// A tensor's bytes as they are stored.
AlignedBuffer load_tensor(const TensorDirectory& directory, const TensorInfo& tensor);

/// Calls body(first_row, rows, bytes) for runs of whole rows of about max_bytes, in order; first_row is a multiple of
/// kTileRows (quant/tiles.h): a tensor of any size passes in bounded memory. The bytes are valid during the call only.
void for_each_rows(const TensorDirectory& directory, const TensorInfo& tensor, uint64_t max_bytes,
                   const std::function<void(int64_t, int64_t, std::span<const std::byte>)>& body);

}  // namespace ef
