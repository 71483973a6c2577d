#include "expertflow/weights/header_reader.h"

#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/weights/checked.h"

namespace ef {

HeaderReader::HeaderReader(const ByteSource& source, uint64_t max_bytes)
    : source_(source),
      limit_(std::min(source.size(), max_bytes)),
      buffer_(new std::byte[size_t(std::min<uint64_t>(kBuffer, limit_))]) {}

std::string HeaderReader::where() const {
  std::string text = item_;
  if (count_ != 0) text += fmt::format(" {} of {}", index_ + 1, count_);
  if (!name_.empty()) text += fmt::format(" ({})", printable(name_));
  return text;
}

void HeaderReader::too_short(uint64_t bytes, const char* field) const {
  if (limit_ < source_.size()) {
    fail<ModelError>("{}: {}: expected a header of at most {} bytes, found {} bytes more for the {} at offset {}",
                     file(), where(), limit_, bytes, field, position_);
  }
  fail<ModelError>(
      "{}: {}: the file is cut short: expected {} bytes for the {} at offset {}, found {} (the file has {} bytes)",
      file(), where(), bytes, field, position_, remaining(), source_.size());
}

std::string HeaderReader::string(const char* field, uint64_t max_length) {
  const uint64_t length = scalar<uint64_t>(field);
  need(length, field);
  EF_CHECK(length <= max_length, ModelError, "{}: {}: expected a {} of at most {} bytes, found a length of {}", file(),
           where(), field, max_length, length);
  std::string text(length, '\0');
  take(text.data(), length);
  return text;
}

void HeaderReader::need_items(uint64_t count, uint64_t item_bytes, const char* field) const {
  EF_CHECK(count <= remaining() / item_bytes, ModelError,
           "{}: {}: expected at most {} {} in the {} bytes that remain, found a count of {} (the file has {} bytes)",
           file(), where(), remaining() / item_bytes, field, remaining(), count, source_.size());
}

void HeaderReader::take_slow(std::byte* out, size_t bytes) {
  while (bytes != 0) {
    if (used_ == buffered_) {
      buffered_ = size_t(std::min<uint64_t>(kBuffer, remaining()));
      used_ = 0;
      source_.read(position_, {buffer_.get(), buffered_});
    }
    const size_t n = std::min(bytes, buffered_ - used_);
    std::memcpy(out, buffer_.get() + used_, n);
    used_ += n, position_ += n, out += n, bytes -= n;
  }
}

}  // namespace ef
