#include "expertflow/engine/prefetch_options.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "expertflow/engine/memory_budget.h"

namespace ef {

namespace {

using Json = nlohmann::json;
constexpr const char* kFlag = "layer-wise-config";

std::optional<int> whole_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "3" or "3-11".
std::pair<int, int> layer_range(const std::string& text, int layers) {
  const size_t dash = text.find('-');
  const auto first = whole_number(std::string_view(text).substr(0, dash));
  const auto last = dash == std::string::npos ? first : whole_number(std::string_view(text).substr(dash + 1));
  EF_CHECK(first && last && *first >= 0 && *first <= *last && *last < layers, ConfigError,
           "{}: layers: expected a layer (3) or a range (3-11) below {}, found \"{}\"", kFlag, layers, text);
  return {*first, *last};
}

void apply(const Json& json, const std::string& where, int experts, CandidateRule& rule) {
  EF_CHECK(json.is_object(), ConfigError, "{}: {}: expected an object, found {}", kFlag, where, json.dump());
  for (const auto& [name, value] : json.items()) {
    const double number = value.is_number() ? value.get<double>() : -1;
    const auto check = [&](bool good, const char* expected) {
      EF_CHECK(good, ConfigError, "{}: {}: {}: expected {}, found {}", kFlag, where, name, expected, value.dump());
    };
    if (name == "mass") {
      check(number > 0 && number <= 1, "a share above 0 and at most 1");
      rule.mass = float(number);
    } else if (name == "least_probability") {
      check(number >= 0 && number <= 1, "a probability");
      rule.least_probability = float(number);
    } else if (name == "topk" || name == "prediction_topk") {
      check(value.is_number_integer() && number >= 0 && number <= experts, "a whole number up to the layer's experts");
      rule.most = int(number);
      rule.least = std::min(rule.least, rule.most);
      if (rule.most == 0) rule.least_probability = 2;  // nothing is that likely
    } else {
      fail<ConfigError>("{}: {}: expected mass, least_probability or prediction_topk, found \"{}\"", kFlag, where,
                        name);
    }
  }
}

Json read_config_json(const std::string& text) {
  std::string source = text;
  if (text.front() != '{') {
    try {
      source = read_text_file(text, 1 << 20);
    } catch (const ModelError& error) {
      fail<ConfigError>("{}: {}", kFlag, error.what());
    }
  }
  Json json = Json::parse(source, nullptr, false);
  EF_CHECK(json.is_object(), ConfigError, "{}: expected a JSON object, found \"{}\"", kFlag, source.substr(0, 60));
  return json;
}

}  // namespace

std::optional<int> parse_horizon(const std::string& text) {
  if (text == "auto") return std::nullopt;
  const auto value = whole_number(text);
  EF_CHECK(value && *value >= 0 && *value <= kMaxLayers, ConfigError,
           "prediction-horizon (read-ahead): expected auto or 0 to {}, found \"{}\"", kMaxLayers, text);
  return value;
}

double parse_io_limit(const std::string& text) {
  if (text == "none") return 0;
  const auto complain = [&] {
    fail<ConfigError>("io-limit: expected bytes a second (500MB) or none, found \"{}\"", text);
  };
  try {
    const BudgetRequest request = parse_budget(text);
    if (request.kind != BudgetRequest::Kind::kBytes || request.bytes == 0) complain();
    return double(request.bytes);
  } catch (const ConfigError&) {
    complain();
  }
  return 0;
}

CandidateRules candidate_rules(const EngineOptions& options, const Config& config) {
  const int experts = config.router.experts, top_k = config.router.top_k, asked = options.prediction_topk;
  EF_CHECK(asked >= 0 && (experts == 0 || asked <= experts), ConfigError, "prediction-topk: expected 0 to {}, found {}",
           experts, asked);
  CandidateRules rules;
  rules.all.most = asked > 0 ? asked : std::min(2 * top_k, experts);
  rules.all.least = std::min(top_k, rules.all.most);
  if (options.layer_wise_config.empty()) return rules;
  const Json json = read_config_json(options.layer_wise_config);
  Json by_layer = Json::object();  // "layers", and layers that stand for themselves
  for (const auto& [name, value] : json.items()) {
    if (name == "default" || name == "*") {
      apply(value, name, experts, rules.all);
    } else if (name == "layers") {
      EF_CHECK(value.is_object(), ConfigError, "{}: layers: expected an object, found {}", kFlag, value.dump());
      by_layer.update(value);
    } else {
      EF_CHECK(!name.empty() && name.front() >= '0' && name.front() <= '9', ConfigError,
               "{}: expected default, layers or a layer, found \"{}\"", kFlag, name);
      by_layer[name] = value;
    }
  }
  const int layers = int(config.layers.size());
  if (!by_layer.empty()) rules.layers.assign(size_t(layers), rules.all);
  for (const auto& [name, value] : by_layer.items()) {
    const auto [first, last] = layer_range(name, layers);
    for (int l = first; l <= last; ++l) apply(value, "layers: " + name, experts, rules.layers[size_t(l)]);
  }
  return rules;
}

int layers_holding(int moe_layers, const Config& config) {
  std::vector<int> sparse;
  for (size_t l = 0; l < config.layers.size(); ++l)
    if (config.layers[l].sparse) sparse.push_back(int(l));
  const size_t ahead = std::min(size_t(std::max(moe_layers, 1)), sparse.empty() ? 0 : sparse.size() - 1);
  int most = 1;
  for (size_t i = 0; i + ahead < sparse.size(); ++i) most = std::max(most, sparse[i + ahead] - sparse[i]);
  return most;
}

ForesightOptions foresight_options(const EngineOptions& options, const Config& config, const CacheGeometry& geometry,
                                   uint64_t pool_bytes) {
  ForesightOptions out;
  const auto horizon = parse_horizon(options.prediction_horizon);
  out.horizon = horizon.value_or(0);
  out.candidates = candidate_rules(options, config);
  out.governor.mode = horizon == 0 ? PrefetchMode::kOff : parse_prefetch_mode(options.async_prefetch);
  out.governor.pool_bytes = pool_bytes;
  out.governor.most_rows = options.ubatch;  // regimes say how much less is done for many rows
  int experts = 0;
  for (const auto& layer : geometry.layers) experts += layer.experts;
  out.controller.expert_bytes = experts > 0 ? double(geometry.total_footprint()) / experts : 0;
  out.controller.expected = config.router.top_k;
  out.controller.most = std::clamp(config.sparse_layers() - 1, 1, out.controller.most);
  return out;
}

}  // namespace ef
