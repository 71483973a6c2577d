// Where traces go and which: the server's flags, and the environment variables that OpenTelemetry has names for.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "apps/server/tracing/otlp_http.h"

namespace ef::server {

struct TraceOptions {
  std::optional<OtlpTarget> target;  ///< nothing: traces are not sent
  double sample = 0.05;              ///< of the traces that begin here
  Attributes resource;               ///< service.name and what OTEL_RESOURCE_ATTRIBUTES adds
};

using Environment = std::function<const char*(const char* name)>;  ///< std::getenv

/// endpoint: of the flag; the flag wins over OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, and this over
/// OTEL_EXPORTER_OTLP_ENDPOINT (to which, as to the flag, /v1/traces is added). OTEL_EXPORTER_OTLP_TRACES_HEADERS or
/// OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_SDK_DISABLED and
/// OTEL_TRACES_EXPORTER=none mean what they do elsewhere. ConfigError naming what cannot be read, and for protocols
/// that are not spoken.
TraceOptions trace_options(const std::string& endpoint, double sample, const Environment& environment);

}  // namespace ef::server
