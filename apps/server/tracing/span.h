// What a trace is made of, and its form in OTLP's JSON encoding
// (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ef::server {

using AttributeValue = std::variant<std::string, int64_t, double, bool, std::vector<std::string>>;
using Attributes = std::vector<std::pair<std::string, AttributeValue>>;

struct TraceSpan {
  enum class Kind : uint8_t { kInternal = 1, kServer = 2 };  ///< as the protocol numbers them
  enum class Status : uint8_t { kUnset = 0, kError = 2 };
  std::string trace_id, span_id, parent_id;  ///< hex; parent_id empty: a root
  std::string trace_state;
  std::string name;
  Kind kind = Kind::kInternal;
  uint64_t begin = 0, end = 0;  ///< unix time in nanoseconds
  Attributes attributes;
  Status status = Status::kUnset;
  std::string message;  ///< of an error
};

/// An ExportTraceServiceRequest. Text that is not UTF-8 has its bytes replaced.
std::string otlp_json(std::span<const TraceSpan> spans, const Attributes& resource, const std::string& version);

}  // namespace ef::server
