// Options are declared once, by the struct that owns them: member, names, help, in its for_each(visitor). Parsing,
// help, the environment twin of every flag and the list in the docs come from that one list.
#pragma once
#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace ef {

/// names: comma separated as the command line takes them ("-c,--ctx-size"); the first long one gives the environment
/// twin.
struct OptionInfo {
  std::string_view names;
  std::string_view help;
};

/// First long name without dashes: "ctx-size".
inline std::string option_long_name(std::string_view names) {
  size_t at = names.find("--");
  if (at == std::string_view::npos) return std::string(names.substr(names.find_first_not_of('-')));
  names.remove_prefix(at + 2);
  return std::string(names.substr(0, names.find_first_of(",{")));
}

/// "EXPERTFLOW_CTX_SIZE"
inline std::string option_environment_name(std::string_view names) {
  std::string name = "EXPERTFLOW_" + option_long_name(names);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return c == '-' ? '_' : char(std::toupper(c)); });
  return name;
}

}  // namespace ef
