// Names of parameters as GoogleTest takes them: without hyphens.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>

namespace ef::testing {

inline std::string test_name(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

}  // namespace ef::testing
