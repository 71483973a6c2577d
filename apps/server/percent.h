// Percent codes, as paths and headers have them.
#pragma once
#include <charconv>
#include <optional>
#include <string_view>

namespace ef::server {

/// The byte that the code ("%2F") at `at` stands for; nothing where there is none.
inline std::optional<char> percent_code(std::string_view text, size_t at) {
  constexpr size_t kDigits = 2;
  if (at + kDigits >= text.size() || text[at] != '%') return std::nullopt;
  unsigned byte = 0;
  const char* digits = text.data() + at + 1;
  if (std::from_chars(digits, digits + kDigits, byte, 16).ptr != digits + kDigits) return std::nullopt;
  return char(byte);
}

}  // namespace ef::server
