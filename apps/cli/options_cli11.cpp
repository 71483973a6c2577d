#include "apps/cli/options_cli11.h"

#include <map>

namespace ef::cli {

std::vector<std::string> with_long_names(int argc, char** argv) {
  static const std::map<std::string, std::string> kNames = {
      {"-ub", "--ubatch-size"},    {"-cnv", "--conversation"},       {"-no-cnv", "--no-conversation"},
      {"-sys", "--system-prompt"}, {"-ctk", "--cache-type-k"},       {"-ctv", "--cache-type-v"},
      {"-st", "--single-turn"},    {"-sysf", "--system-prompt-file"}};
  std::vector<std::string> out;
  for (int i = 1; i < argc; ++i) {
    const auto it = kNames.find(argv[i]);
    out.push_back(it == kNames.end() ? argv[i] : it->second);
  }
  return out;
}

}  // namespace ef::cli
