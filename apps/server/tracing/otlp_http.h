// OTLP over HTTP/1.1: one POST an export (https://opentelemetry.io/docs/specs/otlp/#otlphttp).
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/server/load_client.h"
#include "apps/server/tracing/span_exporter.h"

namespace ef::server {

struct OtlpTarget {
  LoadTarget where;
  std::vector<std::pair<std::string, std::string>> headers;  ///< further ones, such as a collector's key
};

/// seconds: for one export, connecting included.
std::unique_ptr<SpanTransport> make_otlp_http(OtlpTarget target, double seconds);

/// What an answer means: 2xx accepted (with partialSuccess.rejectedSpans of a JSON body), 429, 502, 503 and 504 worth
/// another try, anything else refused. retry_after: that header's value.
SendResult read_otlp_answer(int status, const std::string& body, const std::string& retry_after);

}  // namespace ef::server
