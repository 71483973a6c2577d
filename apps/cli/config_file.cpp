#include "apps/cli/config_file.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "apps/cli/common.h"
#include "expertflow/base/errors.h"

namespace ef::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFlag = "--config";

std::string text_of(const Json& value, const CLI::Option& option) {
  const bool is_flag = option.get_expected_max() == 0;
  if (value.is_boolean()) return is_flag ? value.dump() : value.get<bool>() ? "on" : "off";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void set(CLI::Option& option, const Json& value, const std::string& where) {
  const bool is_flag = option.get_expected_max() == 0, is_list = option.get_expected_max() > 1;
  EF_CHECK(!is_flag || value.is_boolean(), ConfigError, "{}: expected true or false, found {}", where, value.dump());
  try {
    if (is_list && value.is_array()) {
      std::vector<std::string> texts;
      for (const Json& one : value) texts.push_back(text_of(one, option));
      option.default_val(texts);
    } else {
      option.default_val(text_of(value, option));
    }
  } catch (const CLI::Error& error) {
    fail<ConfigError>("{}: {} cannot be taken: {}", where, value.dump(), error.what());
  }
}

}  // namespace

void apply_config(CLI::App& command, const std::string& path) {
  const Json config = Json::parse(read_named_file(kFlag, path, 16u << 20), nullptr, false);
  EF_CHECK(config.is_object(), ConfigError, "{}: {}: expected a JSON object, found {}", kFlag, path,
           config.is_discarded() ? "something else" : config.type_name());
  for (const auto& [key, value] : config.items()) {
    std::string name = "--" + key;
    std::replace(name.begin(), name.end(), '_', '-');
    const std::string where = path + ": " + key;
    CLI::Option* option = command.get_option_no_throw(name);
    EF_CHECK(option && name != kFlag && name != "--help", ConfigError, "{}: {} has no such flag (see {} --help)", where,
             command.get_name(), command.get_name());
    if (!value.is_null()) set(*option, value, where);
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
