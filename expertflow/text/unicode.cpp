#include "expertflow/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "expertflow/base/errors.h"

namespace ef {
namespace {

struct LeadByte {
  size_t length = 0;         // bytes of the whole sequence, 0: not a lead byte
  unsigned char low = 0x80;  // range of the second byte, which rules out overlong forms and surrogates
  unsigned char high = 0xBF;
};

LeadByte classify(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte >= 0xC2 && byte <= 0xDF) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// Bytes at position that begin a well-formed sequence; complete says whether it is whole.
size_t well_formed_prefix(std::string_view text, size_t position, bool& complete) {
  const LeadByte lead = classify(static_cast<unsigned char>(text[position]));
  complete = false;
  if (lead.length == 0) return 0;
  for (size_t i = 1; i < lead.length; ++i) {
    if (position + i >= text.size()) return i;
    const auto byte = static_cast<unsigned char>(text[position + i]);
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return i;
  }
  complete = true;
  return lead.length;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

struct Printable {
  std::array<char32_t, 256> of_byte{};
  std::unordered_map<char32_t, unsigned char> to_byte;
  Printable() {
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool shown = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      of_byte[b] = shown ? static_cast<char32_t>(b) : next++;
      to_byte[of_byte[b]] = static_cast<unsigned char>(b);
    }
  }
};

const Printable& printable() {
  static const Printable table;  // constant data
  return table;
}

}  // namespace

size_t utf8_length(std::string_view text, size_t position) {
  bool complete = false;
  const size_t n = well_formed_prefix(text, position, complete);
  return complete ? n : 0;
}

bool utf8_valid(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t n = utf8_length(text, i);
    if (n == 0) return false;
    i += n;
  }
  return true;
}

char32_t utf8_next(std::string_view text, size_t& position) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[position + i])); };
  const size_t n = utf8_length(text, position);
  EF_DCHECK(n > 0);
  char32_t c = kReplacementCharacter;
  if (n == 1) c = byte(0);
  if (n == 2) c = (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
  if (n == 3) c = (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  if (n == 4) c = (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  position += n == 0 ? 1 : n;
  return c;
}

void utf8_append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | c >> 6));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | c >> 18));
    out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    bool complete = false;
    const size_t n = well_formed_prefix(bytes, i, complete);
    if (complete) {
      out.append(bytes, i, n);
    } else {
      utf8_append(out, kReplacementCharacter);
    }
    i += std::max<size_t>(n, 1);
  }
  return out;
}

std::string unicode_normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const bool compat = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compat ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18
    int boundary = 0;
    const auto c = static_cast<utf8proc_int32_t>(utf8_next(text, i));
    const utf8proc_ssize_t n = utf8proc_decompose_char(c, parts.data(), parts.size(), options, &boundary);
    if (n < 0 || n > static_cast<utf8proc_ssize_t>(parts.size())) {
      points.push_back(c);
    } else {
      points.insert(points.end(), parts.begin(), parts.begin() + n);
    }
  }
  // utf8proc orders combining marks in quadratic time; sorting each run here leaves it nothing to do.
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (size_t i = 0; i < points.size();) {
    if (combining_class(points[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < points.size() && combining_class(points[end]) != 0) ++end;
    std::stable_sort(points.begin() + static_cast<ptrdiff_t>(i), points.begin() + static_cast<ptrdiff_t>(end),
                     [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
  auto n = static_cast<utf8proc_ssize_t>(points.size());
  if (compose) {
    n = utf8proc_normalize_utf32(points.data(), n, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < n; ++i) utf8_append(out, static_cast<char32_t>(points[static_cast<size_t>(i)]));
  return out;
}

std::string unicode_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const char32_t c = utf8_next(text, i);
    if (c == 0x130) {  // the only unconditional lower case of two code points
      out += "i\xCC\x87";
    } else {
      utf8_append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return out;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c > 0x20 && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 0x7F);
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_word(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ND) || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC;
}

char32_t byte_to_printable(unsigned char byte) { return printable().of_byte[byte]; }

std::string bytes_to_printable(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) utf8_append(out, byte_to_printable(static_cast<unsigned char>(c)));
  return out;
}

std::optional<std::string> printable_to_bytes(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (utf8_length(text, i) == 0) return std::nullopt;
    const auto found = printable().to_byte.find(utf8_next(text, i));
    if (found == printable().to_byte.end()) return std::nullopt;
    out.push_back(static_cast<char>(found->second));
  }
  return out;
}

}  // namespace ef
