#include "expertflow/text/jinja_unicode.h"

#include <utf8proc.h>

namespace ef::jinja {
namespace {

struct Decoded {
  int32_t value;
  size_t length;
};

Decoded decode(std::string_view text, size_t pos) {
  utf8proc_int32_t value = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + pos;
  const utf8proc_ssize_t n = utf8proc_iterate(bytes, utf8proc_ssize_t(text.size() - pos), &value);
  if (n <= 0 || value < 0) return {0xFFFD, 1};
  return {value, size_t(n)};
}

void append_upper(std::string& out, int32_t c) {
  if (c == 0xDF) {  // the one common letter whose upper case is two letters
    out += "SS";
  } else {
    append_utf8(out, utf8proc_toupper(c));
  }
}

bool is_cased(int32_t c) { return is_upper(c) || is_lower(c) || utf8proc_category(c) == UTF8PROC_CATEGORY_LT; }

}  // namespace

size_t char_length(std::string_view text, size_t pos) { return decode(text, pos).length; }
int32_t code_point(std::string_view text, size_t pos) { return decode(text, pos).value; }

void append_utf8(std::string& out, int32_t c) {
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t n = utf8proc_encode_char(c, buffer);
  out.append(reinterpret_cast<const char*>(buffer), size_t(n > 0 ? n : 0));
}

size_t count_chars(std::string_view text) {
  size_t count = 0;
  for (size_t i = 0; i < text.size(); i += char_length(text, i)) ++count;
  return count;
}

std::vector<size_t> char_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); i += char_length(text, i)) offsets.push_back(i);
  offsets.push_back(text.size());
  return offsets;
}

bool is_space(int32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  switch (c) {
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
      return true;
    default:
      return c >= 0x2000 && c <= 0x200A;
  }
}

bool is_alpha(int32_t c) {
  const auto category = utf8proc_category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_digit(int32_t c) { return utf8proc_category(c) == UTF8PROC_CATEGORY_ND; }
bool is_upper(int32_t c) { return utf8proc_category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(int32_t c) { return utf8proc_category(c) == UTF8PROC_CATEGORY_LL; }

bool is_printable(int32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

std::string to_upper(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const Decoded d = decode(text, i);
    append_upper(out, d.value);
    i += d.length;
  }
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const Decoded d = decode(text, i);
    append_utf8(out, utf8proc_tolower(d.value));
    i += d.length;
  }
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = char_length(text, 0);
  std::string out;
  append_utf8(out, utf8proc_totitle(code_point(text, 0)));
  return out + to_lower(text.substr(first));
}

std::string title_words(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const Decoded d = decode(text, i);
    append_utf8(out, in_word ? utf8proc_tolower(d.value) : utf8proc_totitle(d.value));
    in_word = is_cased(d.value);
    i += d.length;
  }
  return out;
}

std::string_view strip(std::string_view text, bool left, bool right, const std::string* chars) {
  const auto drops = [&](size_t pos) {
    if (chars == nullptr) return is_space(code_point(text, pos));
    const std::string_view c = text.substr(pos, char_length(text, pos));
    for (size_t i = 0; i < chars->size(); i += char_length(*chars, i)) {
      if (std::string_view(*chars).substr(i, char_length(*chars, i)) == c) return true;
    }
    return false;
  };
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end && drops(begin)) begin += char_length(text, begin);
  while (right && begin < end) {
    size_t last = end - 1;
    while (last > begin && end - last < 4 && (uint8_t(text[last]) & 0xC0) == 0x80) --last;
    if (last + char_length(text, last) != end) last = end - 1;
    if (!drops(last)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

}  // namespace ef::jinja
