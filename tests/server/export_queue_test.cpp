// What waits, what is tried again and when, what is dropped: by the clock and without luck.
#include "apps/server/tracing/export_queue.h"

#include <gtest/gtest.h>

#include <map>

#include "apps/server/tracing/otlp_http.h"
#include "apps/server/tracing/trace_options.h"
#include "expertflow/base/errors.h"

namespace ef::server {
namespace {

using namespace std::chrono_literals;
using Kind = SendResult::Kind;

ExportOptions small() {
  ExportOptions o;
  o.most_spans = 10, o.batch = 4, o.delay = 5s, o.first_retry = 1s, o.most_retry = 4s, o.attempts = 4;
  return o;
}

std::vector<TraceSpan> spans(size_t count) { return std::vector<TraceSpan>(count); }

SendResult result(Kind kind, std::optional<Duration> retry_after = {}) { return {kind, 0, retry_after, "x"}; }

class ExportQueueTest : public ::testing::Test {
 protected:
  ExportQueue queue{small(), [this] { return luck; }};
  double luck = 1;  // backoff as long as it gets
};

TEST_F(ExportQueueTest, ABatchWaitsForMoreOrForItsTime) {
  EXPECT_EQ(queue.due(), std::nullopt);
  EXPECT_TRUE(queue.take(100s).empty());
  queue.push(spans(2), 10s);
  EXPECT_EQ(queue.due(), 15s);
  EXPECT_TRUE(queue.take(14s).empty());
  queue.push(spans(3), 12s);
  EXPECT_EQ(queue.due(), 10s);
  EXPECT_EQ(queue.take(12s).size(), 4u);
  queue.done(result(Kind::kAccepted), 12s);
  EXPECT_EQ(queue.due(), 17s);  // the fifth begins to wait when the others go
  EXPECT_EQ(queue.take(12s, true).size(), 1u);
  queue.done(result(Kind::kAccepted), 12s);
  EXPECT_EQ(queue.counts().exported, 5u);
  EXPECT_EQ(queue.counts().waiting, 0u);
}

TEST_F(ExportQueueTest, WhatIsFullDropsWholeTraces) {
  EXPECT_TRUE(queue.push(spans(7), 0s));
  EXPECT_FALSE(queue.push(spans(4), 0s));
  EXPECT_TRUE(queue.push(spans(3), 0s));
  EXPECT_EQ(queue.take(0s).size(), 4u);
  EXPECT_FALSE(queue.push(spans(1), 0s));  // those under way count
  EXPECT_EQ(queue.counts().dropped_full, 5u);
  EXPECT_EQ(queue.counts().waiting, 10u);
}

TEST_F(ExportQueueTest, RetriesBackOffAndEnd) {
  queue.push(spans(4), 0s);
  ASSERT_EQ(queue.take(0s).size(), 4u);
  queue.done(result(Kind::kLater), 10s);
  EXPECT_EQ(queue.due(), 11s);
  EXPECT_TRUE(queue.take(10900ms).empty());
  luck = 0;
  ASSERT_EQ(queue.take(11s).size(), 4u);
  queue.done(result(Kind::kLater), 20s);
  EXPECT_EQ(queue.due(), 21s);  // half of 2 s
  queue.take(21s);
  queue.done(result(Kind::kLater, 3s), 30s);
  EXPECT_EQ(queue.due(), 33s);  // as the collector says
  queue.take(33s);
  EXPECT_EQ(queue.counts().dropped_unreachable, 0u);
  queue.done(result(Kind::kLater), 40s);
  EXPECT_EQ(queue.counts().dropped_unreachable, 4u);
  EXPECT_EQ(queue.counts().failures, 4u);
  EXPECT_EQ(queue.due(), std::nullopt);
}

TEST_F(ExportQueueTest, NoWaitIsLongerThanTheLongest) {
  queue.push(spans(1), 0s);
  queue.take(0s, true);
  queue.done(result(Kind::kLater, 3600s), 0s);
  EXPECT_EQ(queue.due(), 4s);
}

TEST_F(ExportQueueTest, RefusedAndRejectedSpansAreCounted) {
  queue.push(spans(4), 0s);
  queue.take(0s);
  queue.done(result(Kind::kRefused), 0s);
  EXPECT_EQ(queue.counts().dropped_refused, 4u);
  queue.push(spans(4), 0s);
  queue.take(0s);
  SendResult partly = result(Kind::kAccepted);
  partly.rejected = 3;
  queue.done(partly, 0s);
  EXPECT_EQ(queue.counts().exported, 1u);
  EXPECT_EQ(queue.counts().dropped_refused, 7u);
}

TEST(OtlpAnswer, StatusSaysWhetherToTryAgain) {
  for (const int status : {200, 202, 204}) EXPECT_EQ(read_otlp_answer(status, "", "").kind, Kind::kAccepted);
  for (const int status : {429, 502, 503, 504}) EXPECT_EQ(read_otlp_answer(status, "", "").kind, Kind::kLater);
  for (const int status : {301, 400, 401, 404, 408, 413, 500, 501})
    EXPECT_EQ(read_otlp_answer(status, "", "").kind, Kind::kRefused) << status;
  EXPECT_EQ(read_otlp_answer(503, "", "7").retry_after, 7s);
  EXPECT_EQ(read_otlp_answer(503, "", "").retry_after, std::nullopt);
  EXPECT_EQ(read_otlp_answer(503, "", "-1").retry_after, std::nullopt);
  EXPECT_EQ(read_otlp_answer(503, "", "soon").retry_after, std::nullopt);
  const SendResult partly =
      read_otlp_answer(200, R"({"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too old"}})", "");
  EXPECT_EQ(partly.rejected, 3u);
  EXPECT_EQ(partly.error, "too old");
  EXPECT_EQ(read_otlp_answer(200, R"({"partialSuccess": {"rejectedSpans": 2}})", "").rejected, 2u);
  EXPECT_EQ(read_otlp_answer(200, R"({"partialSuccess": null})", "").rejected, 0u);
}

TraceOptions options_of(const std::string& flag, std::map<std::string, std::string> variables) {
  return trace_options(flag, 0.05, [&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

TEST(TraceOptions, TheFlagWinsOverTheVariables) {
  EXPECT_FALSE(options_of("", {}).target);
  const auto flag = options_of("http://a:1", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:2"}});
  EXPECT_EQ(flag.target->where.host, "a");
  EXPECT_EQ(flag.target->where.port, 1);
  EXPECT_EQ(flag.target->where.path, "/v1/traces");
  const auto base = options_of("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:2/in/"}});
  EXPECT_EQ(base.target->where.path, "/in/v1/traces");
  const auto whole = options_of(
      "", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:2"}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:3/x"}});
  EXPECT_EQ(whole.target->where.host, "c");
  EXPECT_EQ(whole.target->where.path, "/x");
  EXPECT_EQ(options_of("http://[::1]:4318", {}).target->where.host, "::1");
  EXPECT_FALSE(options_of("off", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:2"}}).target);
  EXPECT_FALSE(options_of("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:2"}, {"OTEL_SDK_DISABLED", "true"}}).target);
  EXPECT_FALSE(
      options_of("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:2"}, {"OTEL_TRACES_EXPORTER", "none"}}).target);
}

TEST(TraceOptions, HeadersAndResourceAreRead) {
  const auto o = options_of("http://a:1", {{"OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b%3D, other = 1"},
                                           {"OTEL_RESOURCE_ATTRIBUTES", "service.name=x,deployment.environment=test"},
                                           {"OTEL_SERVICE_NAME", "mine"}});
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(o.target->headers, (Pairs{{"api-key", "a b="}, {"other", "1"}}));
  EXPECT_EQ(o.resource, (Attributes{{"deployment.environment", "test"}, {"service.name", "mine"}}));
  EXPECT_EQ(options_of("", {}).resource, (Attributes{{"service.name", "expertflow"}}));
  EXPECT_EQ(options_of("", {{"OTEL_RESOURCE_ATTRIBUTES", "service.name=x"}}).resource,
            (Attributes{{"service.name", "x"}}));
}

TEST(TraceOptions, WhatCannotBeReadIsRefused) {
  EXPECT_THROW(options_of("https://a:1", {}), ConfigError);
  EXPECT_THROW(options_of("a:1", {}), ConfigError);
  EXPECT_THROW(options_of("http://a:0", {}), ConfigError);
  EXPECT_THROW(options_of("http://a:1", {{"OTEL_EXPORTER_OTLP_HEADERS", "x"}}), ConfigError);
  EXPECT_THROW(options_of("http://a:1", {{"OTEL_EXPORTER_OTLP_HEADERS", "x=%2"}}), ConfigError);
  EXPECT_THROW(options_of("http://a:1", {{"OTEL_EXPORTER_OTLP_HEADERS", "x=a%0d%0ab"}}), ConfigError);
  EXPECT_THROW(options_of("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:2"}, {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}}),
               ConfigError);
  EXPECT_THROW(trace_options("", 1.5, [](const char*) { return nullptr; }), ConfigError);
}

}  // namespace
}  // namespace ef::server
