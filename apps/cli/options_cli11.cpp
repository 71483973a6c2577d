#include "apps/cli/options_cli11.h"

#include <map>
#include <set>

namespace ef::cli {

std::vector<std::string> with_long_names(int argc, char** argv) {
  static const std::map<std::string, std::string> kNames = {{"-ub", "--ubatch-size"},
                                                            {"-cnv", "--conversation"},
                                                            {"-no-cnv", "--no-conversation"},
                                                            {"-sys", "--system-prompt"},
                                                            {"-ctk", "--cache-type-k"},
                                                            {"-ctv", "--cache-type-v"},
                                                            {"-st", "--single-turn"},
                                                            {"-pg", "--pg"},
                                                            {"-sysf", "--system-prompt-file"},
                                                            {"-np", "--parallel"},
                                                            {"-oe", "--output-err"}};
  // What follows one of these is text, whatever it looks like.
  static const std::set<std::string> kTakesText = {"-p",
                                                   "--prompt",
                                                   "-r",
                                                   "--reverse-prompt",
                                                   "-sys",
                                                   "--system-prompt",
                                                   "--chat-template",
                                                   "-f",
                                                   "--file",
                                                   "-m",
                                                   "--model",
                                                   "--chat-template-file",
                                                   "--chat-template-kwargs"};
  std::vector<std::string> out;
  for (int i = 1; i < argc; ++i) {
    const auto it = kNames.find(argv[i]);
    const bool text = i > 1 && kTakesText.count(argv[i - 1]) > 0;
    out.push_back(it == kNames.end() || text ? argv[i] : it->second);
  }
  return out;
}

}  // namespace ef::cli
