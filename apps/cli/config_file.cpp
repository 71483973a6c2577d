#include "apps/cli/config_file.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/cli/common.h"
#include "expertflow/base/errors.h"
#include "expertflow/text/bounded_json.h"

namespace ef::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFlag = "--config";

std::string text_of(const Json& value, bool is_flag) {
  if (value.is_boolean()) return is_flag ? value.dump() : value.get<bool>() ? "on" : "off";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::vector<std::string> texts_of(const CLI::Option& option, const Json& value, const std::string& where) {
  const bool is_flag = option.get_expected_max() == 0, is_list = option.get_expected_max() > 1;
  EF_CHECK(!is_flag || value.is_boolean(), ConfigError, "{}: expected true or false, found {}", where, value.dump());
  std::vector<std::string> texts;
  const Json all = is_list && value.is_array() ? value : Json::array({value});
  for (const Json& one : all) {
    EF_CHECK(!one.is_null() && !one.is_array(), ConfigError, "{}: expected a value, found {}", where, one.dump());
    texts.push_back(text_of(one, is_flag));
  }
  return texts;
}

// The command line comes later and replaces it.
void preset(CLI::Option& option, const std::vector<std::string>& texts, const std::string& where) {
  const bool extra = option.get_allow_extra_args();
  option.allow_extra_args(false);  // with them "[a,b]" would be taken apart
  try {
    for (const std::string& text : texts) option.add_result(text);
    if (!texts.empty()) option.run_callback();
  } catch (const CLI::Error& error) {
    fail<ConfigError>("{}: \"{}\" cannot be taken: {}", where, fmt::join(texts, ", "), error.what());
  }
  option.clear();
  option.allow_extra_args(extra);
}

void read_environment(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const char* text = std::getenv(option->get_envname().c_str());
    if (text && *text) preset(*option, {text}, option->get_envname());
  }
}

}  // namespace

void apply_config(CLI::App& command, const std::string& path) {
  const BoundedJson read = read_bounded_json(read_named_file(kFlag, path, 16u << 20));
  EF_CHECK(read.error.empty(), ConfigError, "{}: {} {}", kFlag, path, read.error);
  EF_CHECK(read.value.is_object(), ConfigError, "{}: {}: expected a JSON object, found {}", kFlag, path,
           read.value.type_name());
  std::map<const CLI::Option*, std::string> named;
  for (const auto& [key, value] : read.value.items()) {
    std::string name = "--" + key;
    std::replace(name.begin(), name.end(), '_', '-');
    const std::string where = path + ": " + key;
    CLI::Option* option = command.get_option_no_throw(name);
    EF_CHECK(option && name != kFlag && name != "--help", ConfigError, "{}: {} has no such flag (see {} --help)", where,
             command.get_name(), command.get_name());
    const auto [first, fresh] = named.emplace(option, key);
    EF_CHECK(fresh, ConfigError, "{}: the same flag as {}, expected one of them", where, first->second);
    preset(*option, texts_of(*option, value, where), where);
  }
}

void apply_environment(CLI::App& app, const std::vector<std::string>& arguments) {
  const auto asked = [&](const std::string& text) {
    return std::find(arguments.begin(), arguments.end(), text) != arguments.end();
  };
  if (asked("--help") || asked("-h")) return;
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    if (command->get_name() != arguments[0]) {
      // CLI11 reads theirs too: bench's lists would be no numbers of serve's.
      for (CLI::Option* option : command->get_options()) option->envname("");
      continue;
    }
    read_environment(*command);
    for (CLI::App* inner : command->get_subcommands([](CLI::App*) { return true; }))
      if (asked(inner->get_name())) read_environment(*inner);
  }
}

std::string config_path(const std::vector<std::string>& arguments) {
  const std::string prefix = std::string(kFlag) + "=";
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with(prefix)) return arguments[i].substr(prefix.size());
    if (arguments[i] == kFlag && i + 1 < arguments.size()) return arguments[i + 1];
  }
  const char* named = std::getenv("EXPERTFLOW_CONFIG");
  return named ? named : "";
}

}  // namespace ef::cli
