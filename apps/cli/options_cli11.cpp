#include "apps/cli/options_cli11.h"

#include <iterator>
#include <string_view>

namespace ef::cli {

std::vector<std::string> with_long_names(int argc, char** argv) {
  static constexpr const char* kNames[] = {
      "-ub",  "--ubatch-size",   "-cnv", "--conversation", "-no-cnv", "--no-conversation",
      "-sys", "--system-prompt", "-ctk", "--cache-type-k", "-ctv",    "--cache-type-v",
      "-st",  "--single-turn",   "-pg",  "--pg",           "-sysf",   "--system-prompt-file",
      "-np",  "--parallel",      "-oe",  "--output-err"};
  // What follows one of these is text, whatever it looks like.
  constexpr std::string_view kTakesText =
      " -p --prompt -r --reverse-prompt -sys --system-prompt --chat-template -f --file -m --model --chat-template-file "
      "--chat-template-kwargs ";
  std::vector<std::string> out;
  for (int i = 1; i < argc; ++i) {
    const bool text = i > 1 && kTakesText.find(" " + std::string(argv[i - 1]) + " ") != kTakesText.npos;
    out.push_back(argv[i]);
    for (size_t n = 0; n < std::size(kNames) && !text; n += 2)
      if (out.back() == kNames[n]) out.back() = kNames[n + 1];
  }
  return out;
}

}  // namespace ef::cli
