#include "expertflow/engine/hot_profile.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "expertflow/base/errors.h"
#include "expertflow/base/io.h"
#include "expertflow/base/user_cache.h"

namespace ef {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr int kVersion = 1;
constexpr uint64_t kMostBytes = 64 << 20;

std::vector<double> parse_layer(const Json& layer, size_t index, int experts) {
  EF_CHECK(layer.is_array() && layer.size() == size_t(experts), ModelError,
           "layers[{}]: expected an array of {} numbers", index, experts);
  std::vector<double> weights;
  for (const Json& value : layer) {
    const double weight = value.is_number() ? value.get<double>() : -1;
    EF_CHECK(std::isfinite(weight) && weight >= 0, ModelError, "layers[{}]: expected numbers of at least 0, found {}",
             index, value.dump());
    weights.push_back(weight);
  }
  return weights;
}

HotProfile parse(const std::string& text, const std::string& fingerprint, const std::vector<int>& experts) {
  const Json json = Json::parse(text, nullptr, false);
  EF_CHECK(json.is_object(), ModelError, "expected a JSON object");
  const auto field = [&](const char* name) -> const Json& {
    EF_CHECK(json.contains(name), ModelError, "{}: missing", name);
    return json[name];
  };
  EF_CHECK(field("expertflow_profile") == kVersion, ModelError, "expertflow_profile: expected version {}, found {}",
           kVersion, json["expertflow_profile"].dump());
  EF_CHECK(field("model") == fingerprint, ModelError, "model: expected {}, found {}", fingerprint,
           json["model"].dump());
  HotProfile profile;
  profile.fingerprint = fingerprint;
  const Json& tokens = field("tokens");
  EF_CHECK(tokens.is_number() && tokens.get<double>() >= 0, ModelError, "tokens: expected a number, found {}",
           tokens.dump());
  profile.tokens = tokens.get<double>();
  const Json& layers = field("layers");
  EF_CHECK(layers.is_array() && layers.size() == experts.size(), ModelError, "layers: expected an array of {}",
           experts.size());
  for (size_t i = 0; i < experts.size(); ++i) profile.weight.push_back(parse_layer(layers[i], i, experts[i]));
  return profile;
}

}  // namespace

void HotProfile::add(const ExpertUse& use, uint64_t run_tokens) {
  const double keep = std::exp2(-double(run_tokens) / kHalfLife);
  weight.resize(use.size());
  for (size_t l = 0; l < use.size(); ++l) {
    weight[l].resize(use[l].size());
    for (size_t e = 0; e < use[l].size(); ++e) weight[l][e] = weight[l][e] * keep + double(use[l][e]);
  }
  tokens = tokens * keep + double(run_tokens);
}

std::vector<ExpertKey> HotProfile::hottest() const {
  std::vector<std::pair<double, ExpertKey>> all;
  for (size_t l = 0; l < weight.size(); ++l)
    for (size_t e = 0; e < weight[l].size(); ++e)
      if (weight[l][e] > 0) all.push_back({weight[l][e], {LayerId(l), ExpertId(e)}});
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  std::vector<ExpertKey> keys;
  for (const auto& [w, key] : all) keys.push_back(key);
  return keys;
}

double HotProfile::share_of(const std::function<bool(ExpertKey)>& near) const {
  double all = 0, held = 0;
  for (size_t l = 0; l < weight.size(); ++l)
    for (size_t e = 0; e < weight[l].size(); ++e) {
      all += weight[l][e];
      if (near({LayerId(l), ExpertId(e)})) held += weight[l][e];
    }
  return all > 0 ? held / all : 0;
}

fs::path profile_file(const std::string& fingerprint) { return user_cache_file("profiles/" + fingerprint + ".json"); }

std::optional<HotProfile> load_profile(const fs::path& file, const std::string& fingerprint,
                                       const std::vector<int>& experts, std::string& why) {
  why.clear();
  std::error_code ignored;
  if (file.empty() || !fs::exists(file, ignored)) return std::nullopt;
  if (!fs::is_regular_file(file, ignored)) {
    why = fmt::format("{}: expected a file, found something else", file.string());
    return std::nullopt;
  }
  try {
    return parse(read_text_file(file, kMostBytes), fingerprint, experts);
  } catch (const std::exception& error) {
    why = fmt::format("{}: {}", file.string(), error.what());
    return std::nullopt;
  }
}

void save_profile(OutputFile& out, const HotProfile& profile) {
  constexpr double kDigits = 1000;  // of a row: more would be noise
  Json layers = Json::array();
  for (const auto& layer : profile.weight) {
    Json row = Json::array();
    for (const double weight : layer) row.push_back(std::round(weight * kDigits) / kDigits);
    layers.push_back(row);
  }
  const std::string text = Json({{"expertflow_profile", kVersion},
                                 {"model", profile.fingerprint},
                                 {"tokens", std::round(profile.tokens)},
                                 {"layers", layers}})
                               .dump() +
                           "\n";
  out.write(0, std::as_bytes(std::span(text)));
  out.complete(text.size());
  out.publish();
}

}  // namespace ef
