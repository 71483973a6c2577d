// How a launcher's scratch is divided.
#pragma once
#include <cstdint>

namespace ef::cuda {

/// Memory dealt out of one piece, each part on a 256-byte boundary; without one it counts.
class Carve {
 public:
  explicit Carve(void* base) : base_(static_cast<unsigned char*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    void* at = base_ ? base_ + bytes_ : nullptr;
    bytes_ += (uint64_t(count) * sizeof(T) + 255) / 256 * 256;
    return static_cast<T*>(at);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  unsigned char* base_;
  uint64_t bytes_ = 0;
};

}  // namespace ef::cuda
