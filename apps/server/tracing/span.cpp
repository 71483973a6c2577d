#include "apps/server/tracing/span.h"

#include <cmath>

#include "apps/server/api_error.h"

namespace ef::server {

namespace {

// 64-bit integers are text in this encoding; numbers that are not finite have names.
Json value_json(const AttributeValue& value) {
  struct Visitor {
    Json operator()(const std::string& v) const { return {{"stringValue", v}}; }
    Json operator()(int64_t v) const { return {{"intValue", std::to_string(v)}}; }
    Json operator()(double v) const {
      if (std::isfinite(v)) return {{"doubleValue", v}};
      return {{"doubleValue", std::isnan(v) ? "NaN" : v > 0 ? "Infinity" : "-Infinity"}};
    }
    Json operator()(bool v) const { return {{"boolValue", v}}; }
    Json operator()(const std::vector<std::string>& v) const {
      Json values = Json::array();
      for (const std::string& one : v) values.push_back({{"stringValue", one}});
      return {{"arrayValue", {{"values", values}}}};
    }
  };
  return std::visit(Visitor{}, value);
}

Json attributes_json(const Attributes& attributes) {
  Json list = Json::array();
  for (const auto& [key, value] : attributes) list.push_back({{"key", key}, {"value", value_json(value)}});
  return list;
}

Json span_json(const TraceSpan& span) {
  Json json{{"traceId", span.trace_id},
            {"spanId", span.span_id},
            {"name", span.name},
            {"kind", int(span.kind)},
            {"startTimeUnixNano", std::to_string(span.begin)},
            {"endTimeUnixNano", std::to_string(span.end)},
            {"attributes", attributes_json(span.attributes)},
            {"status", Json::object()}};
  if (!span.parent_id.empty()) json["parentSpanId"] = span.parent_id;
  if (!span.trace_state.empty()) json["traceState"] = span.trace_state;
  if (span.status == TraceSpan::Status::kError) {
    json["status"]["code"] = int(span.status);
    if (!span.message.empty()) json["status"]["message"] = span.message;
  }
  return json;
}

}  // namespace

std::string otlp_json(std::span<const TraceSpan> spans, const Attributes& resource, const std::string& version) {
  Json list = Json::array();
  for (const TraceSpan& span : spans) list.push_back(span_json(span));
  const Json scope{{"name", "expertflow"}, {"version", version}};
  Json scoped = Json::array();
  scoped.push_back({{"scope", scope}, {"spans", std::move(list)}});
  Json all = Json::array();
  all.push_back({{"resource", {{"attributes", attributes_json(resource)}}}, {"scopeSpans", std::move(scoped)}});
  return dump({{"resourceSpans", std::move(all)}});
}

}  // namespace ef::server
