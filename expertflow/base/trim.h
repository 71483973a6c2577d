// Text without the space around it.
#pragma once
#include <string_view>

namespace ef {

inline std::string_view trimmed(std::string_view text, std::string_view space = " \t\r\n") {
  const size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

}  // namespace ef
