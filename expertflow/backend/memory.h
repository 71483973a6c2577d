// Owned memory of a backend, and the words in which a plan divides it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "expertflow/base/ids.h"

namespace ef {

/// Whoever gave memory and takes it back.
class MemoryOwner {
 public:
  virtual ~MemoryOwner() = default;
  virtual void release(std::byte* data, uint64_t size) noexcept = 0;
};

/// Owned backend memory, 64-byte aligned at least. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(MemoryOwner* owner, std::byte* data, uint64_t size) : owner_(owner), data_(data), size_(size) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  std::byte* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  uint64_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  MemoryOwner* owner_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

/// Memory by how long it is held and by what decides its size.
enum class Region : uint8_t {
  kStatic,   ///< weights, and experts that never leave
  kDynamic,  ///< KV cache, activations, scratch: sized by what a step may ask for
  kElastic   ///< slots that experts come to and leave: what is left
};
constexpr int kRegions = 3;
std::string_view region_name(Region region);  ///< "static"

/// What memory is for. part: a word of the plan, a literal.
struct MemoryUse {
  Region region = Region::kDynamic;
  std::string_view part = "scratch";
  LayerId layer = -1;  ///< -1: of no layer
};

}  // namespace ef
