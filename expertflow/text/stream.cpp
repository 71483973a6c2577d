#include "expertflow/text/stream.h"

#include <cstdint>
#include <utility>

namespace ef {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Shape {
  size_t length;      // of the character; 0: no character begins with this byte
  uint8_t low, high;  // range of the second byte
};

/// Table 3-7 of the Unicode standard: well-formed UTF-8.
Shape shape_of(uint8_t first) {
  if (first < 0x80) return {1, 0, 0};
  if (first >= 0xC2 && first <= 0xDF) return {2, 0x80, 0xBF};
  if (first == 0xE0) return {3, 0xA0, 0xBF};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first >= 0xE1 && first <= 0xEF) return {3, 0x80, 0xBF};
  if (first == 0xF0) return {4, 0x90, 0xBF};
  if (first >= 0xF1 && first <= 0xF3) return {4, 0x80, 0xBF};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

/// Bytes at text[pos] that begin a character well, at most its length.
size_t good_prefix(std::string_view text, size_t pos, const Shape& shape) {
  size_t n = 1;
  for (; n < shape.length && pos + n < text.size(); ++n) {
    const uint8_t byte = uint8_t(text[pos + n]);
    const bool good = n == 1 ? byte >= shape.low && byte <= shape.high : byte >= 0x80 && byte <= 0xBF;
    if (!good) break;
  }
  return n;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  const std::string text = std::exchange(held_, {}) + std::string(bytes);
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const Shape shape = shape_of(uint8_t(text[pos]));
    const size_t n = good_prefix(text, pos, shape);
    if (n == shape.length) {
      out.append(text, pos, n);
    } else if (shape.length > 0 && pos + n == text.size()) {
      held_ = text.substr(pos);
    } else {
      out += kReplacement;
    }
    pos += n;
  }
  return out;
}

std::string Utf8Stream::finish() {
  if (held_.empty()) return {};
  held_.clear();
  return std::string(kReplacement);
}

std::string TextStream::finish() {
  const std::string rest = utf8_.finish();
  std::string shown = rest.empty() ? std::string() : stop_.push(rest);
  shown += stop_.finish();
  return shown;
}

}  // namespace ef
