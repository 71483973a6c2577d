// Binds an options struct's for_each list to CLI11: flag, environment twin, default, help.
#pragma once
#include <CLI/CLI.hpp>
#include <type_traits>

#include "expertflow/base/options.h"

namespace ef::cli {

class Binder {
 public:
  explicit Binder(CLI::App& app) : app_(app) {}

  template <class T>
  void operator()(T& member, const OptionInfo& info) const {
    const std::string names(info.names), help(info.help);
    if constexpr (std::is_same_v<T, bool>)
      app_.add_flag(names, member, help)->envname(option_environment_name(names));
    else if constexpr (std::is_same_v<T, std::vector<std::string>>)
      app_.add_option(names, member, help)->envname(option_environment_name(names))->allow_extra_args(false);
    else
      app_.add_option(names, member, help)->envname(option_environment_name(names))->capture_default_str();
  }

 private:
  CLI::App& app_;
};

template <class Options>
void bind_options(CLI::App& app, Options& options) {
  options.for_each(Binder(app));
}

/// llama-cli spells some long names with one dash ("-ub", "-cnv", "-sys"): rewritten to our long names before parsing.
std::vector<std::string> with_long_names(int argc, char** argv);

}  // namespace ef::cli
