// Sequential, buffered reading of a header from a ByteSource: a vocabulary of 250k strings costs a few large reads, and
// every length is compared with the bytes that remain before anything is allocated.
#pragma once
#include <cstring>
#include <memory>
#include <string>

#include "expertflow/base/io.h"

namespace ef {

class HeaderReader {
 public:
  /// The header must lie within the first max_bytes of the file.
  HeaderReader(const ByteSource& source, uint64_t max_bytes);

  const std::string& file() const { return source_.name(); }
  uint64_t position() const { return position_; }
  uint64_t remaining() const { return limit_ - position_; }

  /// What is being read, for messages: "metadata entry" 3 of 25 "general.name". The text must outlive its use.
  void at(const char* item, uint64_t index, uint64_t count) {
    item_ = item, index_ = index, count_ = count, name_.clear();
  }
  void named(std::string_view name) { name_ = name; }
  std::string where() const;  ///< "metadata entry 3 of 25 (general.name)"

  /// Little-endian number; ModelError if the file ends first.
  template <class T>
  T scalar(const char* field) {
    T value;
    need(sizeof(T), field);
    take(&value, sizeof(T));
    return value;
  }
  /// u64 length and that many bytes, at most max_length.
  std::string string(const char* field, uint64_t max_length);
  /// ModelError unless count items of at least item_bytes each can still follow.
  void need_items(uint64_t count, uint64_t item_bytes, const char* field) const;

 private:
  void need(uint64_t bytes, const char* field) const {
    if (bytes > remaining()) too_short(bytes, field);
  }
  [[noreturn]] void too_short(uint64_t bytes, const char* field) const;
  void take(void* out, size_t bytes) {
    if (bytes <= buffered_ - used_) {
      std::memcpy(out, buffer_.get() + used_, bytes);
      used_ += bytes;
      position_ += bytes;
    } else {
      take_slow(static_cast<std::byte*>(out), bytes);
    }
  }
  void take_slow(std::byte* out, size_t bytes);

  static constexpr size_t kBuffer = 256 << 10;
  const ByteSource& source_;
  uint64_t limit_, position_ = 0;
  std::unique_ptr<std::byte[]> buffer_;
  size_t buffered_ = 0, used_ = 0;
  const char* item_ = "header";
  uint64_t index_ = 0, count_ = 0;
  std::string name_;
};

}  // namespace ef
