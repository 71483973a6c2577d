// Values for flags from a JSON file (--config) and from the environment.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ef::cli {

/// {"expert_cache_size": "6GiB", "prediction_horizon": 4, "async_prefetch": true}: names are those of flags, with
/// '_' or '-' between words; values become the flags' defaults, so that the environment and the command line win.
/// ConfigError naming the file, the key, what was expected and what was found.
void apply_config(CLI::App& command, const std::string& path);

/// The same of the environment, so that what is no value of its flag's type is refused even where the flag is given.
void apply_environment(CLI::App& app, const std::vector<std::string>& arguments);

/// The file that --config names among the arguments, or EXPERTFLOW_CONFIG; empty: none.
std::string config_path(const std::vector<std::string>& arguments);

}  // namespace ef::cli
