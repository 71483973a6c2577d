#include "apps/server/tracing/trace_options.h"

#include <algorithm>

#include "apps/server/percent.h"
#include "expertflow/base/errors.h"
#include "expertflow/base/trim.h"

namespace ef::server {

namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string percent_decoded(const std::string& text, const std::string& name) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const std::optional<char> code = percent_code(text, i);
    EF_CHECK(code, ConfigError, "{}: expected two hex digits after %, found \"{}\"", name, text);
    out += *code;
    i += 2;
  }
  return out;
}

// "key=value,key=value", values percent-encoded.
Pairs read_pairs(const std::string& name, std::string_view text) {
  constexpr std::string_view kSpace = " ";
  Pairs pairs;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = trimmed(text.substr(at, end - at), kSpace);
    at = end + 1;
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    const std::string key(trimmed(part.substr(0, equals), kSpace));
    const bool fine = equals != std::string_view::npos && !key.empty();
    EF_CHECK(fine, ConfigError, "{}: expected key=value separated by commas, found \"{}\"", name, part);
    pairs.emplace_back(key, percent_decoded(std::string(trimmed(part.substr(equals + 1), kSpace)), name));
  }
  return pairs;
}

OtlpTarget target_at(const std::string& flag, const std::string& url, bool whole) {
  EF_CHECK(!url.starts_with("https://"), ConfigError,
           "{}: TLS is not spoken here: expected http://host:port, a collector on this machine or network that passes "
           "traces on, found \"{}\"",
           flag, url);
  return {parse_target(url, whole ? "" : "/v1/traces", flag), {}};
}

}  // namespace

TraceOptions trace_options(const std::string& endpoint, double sample, const Environment& environment) {
  EF_CHECK(sample >= 0 && sample <= 1, ConfigError, "--otlp-sample: expected 0 to 1, found {}", sample);
  const auto value = [&](const char* name) {
    const char* text = environment(name);
    return std::string(text ? text : "");
  };
  const char* const kTraces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
  const char* const kAll = "OTEL_EXPORTER_OTLP_ENDPOINT";
  TraceOptions options;
  options.sample = sample;
  const std::string service = value("OTEL_SERVICE_NAME");
  const bool disabled = value("OTEL_SDK_DISABLED") == "true" || value("OTEL_TRACES_EXPORTER") == "none";
  if (!endpoint.empty()) {
    if (endpoint != "off") options.target = target_at("--otlp-endpoint", endpoint, false);
  } else if (!disabled && !value(kTraces).empty()) {
    options.target = target_at(kTraces, value(kTraces), true);
  } else if (!disabled && !value(kAll).empty()) {
    options.target = target_at(kAll, value(kAll), false);
  }
  bool named = !service.empty();
  const char* const kResource = "OTEL_RESOURCE_ATTRIBUTES";
  for (auto& [key, text] : read_pairs(kResource, value(kResource))) {
    if (key == "service.name" && !service.empty()) continue;  // the variable of its own wins
    named |= key == "service.name";
    options.resource.emplace_back(key, text);
  }
  if (!service.empty())
    options.resource.emplace_back("service.name", service);
  else if (!named)
    options.resource.emplace_back("service.name", "expertflow");
  if (!options.target) return options;
  for (const char* name : {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"}) {
    const std::string protocol = value(name);
    EF_CHECK(protocol.empty() || protocol == "http/json" || !endpoint.empty(), ConfigError,
             "{}: expected http/json, the only one spoken here, found \"{}\"; --otlp-endpoint overrides it", name,
             protocol);
  }
  const char* const kHeaders = value("OTEL_EXPORTER_OTLP_TRACES_HEADERS").empty() ? "OTEL_EXPORTER_OTLP_HEADERS"
                                                                                  : "OTEL_EXPORTER_OTLP_TRACES_HEADERS";
  options.target->headers = read_pairs(kHeaders, value(kHeaders));
  for (const auto& [name, text] : options.target->headers)
    EF_CHECK((name + text).find_first_of("\r\n") == std::string::npos, ConfigError, "{}: a line break in \"{}\"",
             kHeaders, name);
  return options;
}

}  // namespace ef::server
