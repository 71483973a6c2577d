// W3C Trace Context (https://www.w3.org/TR/trace-context/, level 1): which trace a request belongs to.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace ef::server {

struct TraceContext {
  std::string trace_id;  ///< 32 hex digits in lower case, not all zero
  std::string span_id;   ///< 16 of them: of the caller's span in a request, of one's own in an answer
  bool sampled = false;
  std::string state;  ///< tracestate, in one line; empty: none
};

/// A traceparent header's value; nothing where it is malformed: a new trace begins then. Versions after 00 are read as
/// 00, as far as that goes.
std::optional<TraceContext> parse_traceparent(std::string_view value);

/// A tracestate header's value (several headers: joined by commas): its members without the space around them. Nothing
/// where it is malformed, holds a key twice or more than 32 members: it is left out then, the trace goes on.
std::optional<std::string> parse_tracestate(std::string_view value);

/// "00-TRACE-SPAN-FLAGS"
std::string traceparent_of(const TraceContext& context);

}  // namespace ef::server
