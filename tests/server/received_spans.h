// Spans as a collector receives them, and tracers whose ids are always the same.
#pragma once
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "apps/server/tracing/request_trace.h"
#include "tests/server/client.h"

namespace ef::testing {

inline const char* const kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
inline const char* const kUnsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

// What came, span by span, after checks that hold for every export.
struct Received {
  std::vector<Json> spans;
  Json resource;

  static std::string text(const Json& value) { return value.get<std::string>(); }
  void take(const Json& body) {
    for (const Json& r : body.at("resourceSpans")) {
      resource = r.at("resource");
      for (const Json& scoped : r.at("scopeSpans")) {
        EXPECT_EQ(scoped.at("scope").at("name"), "expertflow");
        for (const Json& span : scoped.at("spans")) {
          check(span);
          spans.push_back(span);
        }
      }
    }
  }
  static bool is_hex(const std::string& id, size_t digits) {
    return id.size() == digits && id.find_first_not_of("0123456789abcdef") == std::string::npos &&
           id.find_first_not_of('0') != std::string::npos;
  }
  static void check(const Json& span) {
    EXPECT_TRUE(is_hex(text(span.at("traceId")), 32)) << span;
    EXPECT_TRUE(is_hex(text(span.at("spanId")), 16)) << span;
    if (span.contains("parentSpanId")) {
      EXPECT_TRUE(is_hex(text(span["parentSpanId"]), 16)) << span;
    }
    EXPECT_LE(std::stoull(text(span.at("startTimeUnixNano"))), std::stoull(text(span.at("endTimeUnixNano")))) << span;
    EXPECT_FALSE(text(span.at("name")).empty());
    for (const Json& a : span.at("attributes")) {
      EXPECT_FALSE(text(a.at("key")).empty());
      EXPECT_EQ(a.at("value").size(), 1u) << a;
      if (a["value"].contains("intValue")) {
        EXPECT_TRUE(a["value"]["intValue"].is_string()) << a;
      }
    }
  }
  const Json& find(const std::string& name) const {
    for (const Json& span : spans)
      if (span["name"] == name) return span;
    throw std::runtime_error("no span " + name);
  }
  static Json attribute(const Json& span, const std::string& key) {
    for (const Json& a : span.at("attributes"))
      if (a["key"] == key) return a["value"].begin().value();
    return nullptr;
  }
  static uint64_t at(const Json& span, const char* which) { return std::stoull(text(span.at(which))); }
};

inline const SteadyClock kClock;
inline const Log kQuiet(LogLevel::kOff, nullptr);

inline server::TraceSources sources(uint64_t seed = 1) {
  server::TraceSources s = server::real_trace_sources();
  s.random = [random = std::mt19937_64(seed)]() mutable { return random(); };
  return s;
}

}  // namespace ef::testing
