// Traces of a server as a collector receives them: their shape, their parents and times, and what happens where nobody
// takes them.
#include <gtest/gtest.h>

#include <future>
#include <set>

#include "apps/server/tracing/otlp_http.h"
#include "tests/server/received_spans.h"
#include "tests/server/rig.h"

namespace ef::testing {
namespace {

using namespace std::chrono_literals;
using server::Tracer;

// A collector that gives the answers it was told to, then 200.
class Collector {
 public:
  explicit Collector(std::vector<int> statuses = {}) : statuses_(std::move(statuses)) {
    server::HttpOptions options;
    options.port = 0;
    http_ = std::make_unique<server::HttpServer>(
        options,
        [this](server::HttpRequest request, const std::shared_ptr<server::HttpReply>& reply) {
          const std::lock_guard lock(mutex_);
          const size_t number = requests_.size();
          requests_.push_back(request);
          const int status = number < statuses_.size() ? statuses_[number] : 200;
          if (status == 200) received_.take(Json::parse(request.body));
          reply->send(status, "application/json", "{}");
        },
        [](int, const std::string& message) { return message; }, log_);
  }
  int port() const { return http_->port(); }
  Received received() const {
    const std::lock_guard lock(mutex_);
    return received_;
  }
  std::vector<server::HttpRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  Log log_{LogLevel::kOff, nullptr};
  std::vector<int> statuses_;
  mutable std::mutex mutex_;
  std::vector<server::HttpRequest> requests_;
  Received received_;
  std::unique_ptr<server::HttpServer> http_;
};

std::shared_ptr<Tracer> tracer_to(int port, double sample, server::ExportOptions options = {}) {
  options.delay = Duration(0);
  options.first_retry = 1ms;
  server::OtlpTarget target{{"127.0.0.1", port, "/v1/traces", ""}, {{"x-collector-key", "k"}}};
  auto exporter = std::make_unique<server::SpanExporter>(server::make_otlp_http(target, 10),
                                                         server::Attributes{{"service.name", std::string("test")}}, "1",
                                                         options, kClock, kQuiet);
  return std::make_shared<Tracer>(std::move(exporter), sample, sources());
}

RigSetup traced(const std::shared_ptr<Tracer>& tracer) {
  RigSetup setup;
  setup.tracer = tracer;
  setup.budget = "25%";
  return setup;
}

std::string header(const char* traceparent) { return std::string("traceparent: ") + traceparent + "\r\n"; }

TEST(Tracing, ARequestIsASpanWithItsPartsBelowIt) {
  Collector collector;
  const auto tracer = tracer_to(collector.port(), 0);
  {
    ServerRig rig(traced(tracer));
    Json body = chat_body("Tell me of a cat", 12);
    body["seed"] = 7;
    const HttpAnswer answer =
        Client(rig.port())
            .post("/v1/chat/completions", body,
                  header(kParent) + "tracestate: a=1\r\ntracestate: b=2\r\nUser-Agent: tests/1\r\n");
    ASSERT_EQ(answer.status, 200);
    const std::string own = answer.headers.at("traceparent");
    EXPECT_EQ(own.substr(0, 36), std::string(kParent).substr(0, 36));
    EXPECT_NE(own.substr(36, 16), std::string(kParent).substr(36, 16));
    EXPECT_EQ(own.substr(52), "-01");
    ASSERT_TRUE(eventually([&] { return collector.received().spans.size() == 5; }));
    const Received r = collector.received();
    EXPECT_EQ(Received::attribute(r.resource, "service.name"), "test");
    const Json& root = r.find("POST /v1/chat/completions");
    EXPECT_EQ(root["spanId"], own.substr(36, 16));
    EXPECT_EQ(root["parentSpanId"], "b7ad6b7169203331");
    EXPECT_EQ(root["kind"], 2);  // SERVER
    EXPECT_EQ(Received::attribute(root, "http.request.method"), "POST");
    EXPECT_EQ(Received::attribute(root, "http.route"), "/v1/chat/completions");
    EXPECT_EQ(Received::attribute(root, "http.response.status_code"), "200");
    EXPECT_EQ(Received::attribute(root, "user_agent.original"), "tests/1");
    EXPECT_EQ(Received::attribute(root, "server.address"), "localhost");
    const Json& chat = r.find("chat demo-Q5_K_M.gguf");
    EXPECT_EQ(chat["parentSpanId"], root["spanId"]);
    EXPECT_EQ(chat["kind"], 1);  // INTERNAL
    EXPECT_EQ(Received::attribute(chat, "gen_ai.operation.name"), "chat");
    EXPECT_EQ(Received::attribute(chat, "gen_ai.provider.name"), "expertflow");
    EXPECT_EQ(Received::attribute(chat, "gen_ai.request.model"), "demo-Q5_K_M.gguf");
    EXPECT_EQ(Received::attribute(chat, "gen_ai.request.max_tokens"), "12");
    EXPECT_EQ(Received::attribute(chat, "gen_ai.request.seed"), "7");
    EXPECT_EQ(Received::attribute(chat, "gen_ai.response.id"), answer.json()["id"]);
    EXPECT_EQ(Received::attribute(chat, "gen_ai.usage.input_tokens"),
              std::to_string(answer.json()["usage"]["prompt_tokens"].get<int>()));
    EXPECT_EQ(Received::attribute(chat, "gen_ai.usage.output_tokens"),
              std::to_string(answer.json()["usage"]["completion_tokens"].get<int>()));
    EXPECT_EQ(Received::attribute(chat, "gen_ai.response.finish_reasons")["values"][0]["stringValue"],
              answer.json()["choices"][0]["finish_reason"]);
    // The parts follow on each other, and the whole holds them.
    uint64_t end = Received::at(chat, "startTimeUnixNano");
    double stalled = 0;
    for (const char* name : {"queue", "prefill", "decode"}) {
      const Json& part = r.find(name);
      EXPECT_EQ(part["parentSpanId"], chat["spanId"]) << name;
      EXPECT_EQ(Received::at(part, "startTimeUnixNano"), end) << name;
      end = Received::at(part, "endTimeUnixNano");
      if (std::string(name) != "queue") {
        stalled += Received::attribute(part, "expertflow.expert.stall_seconds").get<double>();
        EXPECT_LE(Received::attribute(part, "expertflow.expert.stall_seconds").get<double>() * 1e9,
                  double(end - Received::at(part, "startTimeUnixNano")));
      }
    }
    EXPECT_GT(stalled, 0);  // three quarters of the experts were on disk
    EXPECT_DOUBLE_EQ(Received::attribute(chat, "expertflow.expert.stall_seconds").get<double>(), stalled);
    EXPECT_EQ(end, Received::at(chat, "endTimeUnixNano"));
    EXPECT_LE(Received::at(root, "startTimeUnixNano"), Received::at(chat, "startTimeUnixNano"));
    EXPECT_GE(Received::at(root, "endTimeUnixNano"), end);
    std::set<std::string> ids;
    for (const Json& span : r.spans) {
      EXPECT_EQ(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
      EXPECT_EQ(span["traceState"], "a=1,b=2");
      EXPECT_TRUE(span["status"].empty());
      EXPECT_TRUE(ids.insert(span["spanId"]).second);
    }
    const auto request = collector.requests().at(0);
    EXPECT_EQ(request.path, "/v1/traces");
    EXPECT_EQ(request.header("content-type"), "application/json");
    EXPECT_EQ(request.header("x-collector-key"), "k");
    const std::string metrics = rig.get("/metrics").body;
    EXPECT_NE(metrics.find("decision=\"sampled\"} 1\n"), std::string::npos);
  }
  tracer->shutdown(1s);
}

TEST(Tracing, EachAnswerOfARequestHasASpan) {
  Collector collector;
  const auto tracer = tracer_to(collector.port(), 0);
  ServerRig rig(traced(tracer));
  Json body = completion_body(Json::array({"a cat", "a dog"}), 4);
  body["stream"] = true;
  const HttpAnswer answer = Client(rig.port()).post("/v1/completions", body, header(kParent));
  EXPECT_TRUE(answer.headers.count("traceparent"));
  ASSERT_TRUE(eventually([&] { return collector.received().spans.size() == 1 + 2 * 4; }));
  const Received r = collector.received();
  int answers = 0;
  for (const Json& span : r.spans) answers += span["name"] == "text_completion demo-Q5_K_M.gguf";
  EXPECT_EQ(answers, 2);
}

TEST(Tracing, MalformedContextsBeginANewTrace) {
  ServerRig& rig = shared_rig();  // without a collector: ids all the same
  for (const char* value : {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
                            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"}) {
    const std::string own =
        Client(rig.port()).post("/v1/completions", completion_body("x", 1), header(value)).headers.at("traceparent");
    EXPECT_TRUE(server::parse_traceparent(own)) << own;
    EXPECT_EQ(own.find("0af7651916cd43dd8448eb211c80319c"), std::string::npos);
    EXPECT_TRUE(own.ends_with("-00"));
  }
  const HttpAnswer twice =
      Client(rig.port()).post("/v1/completions", completion_body("x", 1), header(kParent) + header(kParent));
  EXPECT_EQ(twice.headers.at("traceparent").find("0af7651916cd43dd8448eb211c80319c"), std::string::npos);
  EXPECT_FALSE(rig.get("/health", header(kParent)).headers.count("traceparent"));
}

TEST(Tracing, AFailureOfTheEngineIsSentThoughNothingIsSampled) {
  Collector collector;
  const auto tracer = tracer_to(collector.port(), 0);
  RigSetup setup = traced(tracer);
  setup.before_step = [](const Batch&) { throw DeviceError("no such luck"); };
  ServerRig rig(setup);
  const HttpAnswer answer = rig.post("/v1/completions", completion_body("x", 4));
  EXPECT_EQ(answer.status, 500);
  EXPECT_TRUE(answer.headers.at("traceparent").ends_with("-01"));
  ASSERT_TRUE(eventually([&] { return collector.received().spans.size() >= 3; }));
  const Received r = collector.received();
  const Json& root = r.find("POST /v1/completions");
  EXPECT_EQ(root["status"]["code"], 2);
  EXPECT_NE(root["status"]["message"].get<std::string>().find("no such luck"), std::string::npos);
  EXPECT_EQ(Received::attribute(root, "error.type"), "500");
  EXPECT_EQ(rig.post("/v1/completions", {{"prompt", Json::object()}}).status, 400);  // the client's
  EXPECT_EQ(tracer->counts().failed, 1u);
}

TEST(Tracing, ACollectorThatIsBusyIsAskedAgain) {
  Collector collector({503, 429, 400});
  const auto tracer = tracer_to(collector.port(), 1);
  ServerRig rig(traced(tracer));
  const auto ask = [&] { EXPECT_EQ(rig.post("/v1/completions", completion_body("x", 2)).status, 200); };
  ask();
  ASSERT_TRUE(eventually([&] { return tracer->export_counts()->failures == 3; }));
  EXPECT_EQ(tracer->export_counts()->dropped_refused, 5u);  // 400 is final
  const auto requests = collector.requests();
  EXPECT_EQ(requests[0].body, requests[1].body);
  EXPECT_EQ(requests[1].body, requests[2].body);
  ask();
  ASSERT_TRUE(eventually([&] { return tracer->export_counts()->exported == 5; }));
}

TEST(Tracing, ServingGoesOnWithoutACollector) {
  int closed = 0;
  {
    Collector gone;
    closed = gone.port();
  }
  server::ExportOptions options;
  options.attempts = 2;
  options.most_spans = 12;
  const auto tracer = tracer_to(closed, 1, options);
  ServerRig rig(traced(tracer));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(rig.post("/v1/completions", completion_body("x", 2)).status, 200);
  ASSERT_TRUE(eventually([&] {
    const auto c = *tracer->export_counts();
    return c.dropped_full + c.dropped_unreachable == 4 * 5;
  }));
  EXPECT_EQ(tracer->export_counts()->exported, 0u);
  EXPECT_GT(tracer->export_counts()->failures, 0u);
  EXPECT_NE(rig.get("/metrics").body.find("expertflow:trace_spans_dropped_total"), std::string::npos);
  tracer->shutdown(10s);
}

// A collector that takes a connection and says nothing.
TEST(Tracing, ShuttingDownDoesNotWaitForACollectorThatHangs) {
  std::promise<void> release;
  auto gate = release.get_future().share();
  std::promise<void> asked;
  Log log(LogLevel::kOff, nullptr);
  server::HttpOptions options;
  options.port = 0;
  server::HttpServer hangs(
      options,
      [&](const server::HttpRequest&, const std::shared_ptr<server::HttpReply>& reply) {
        asked.set_value();
        gate.wait();
        reply->send(200, "application/json", "{}");
      },
      [](int, const std::string& message) { return message; }, log);
  const auto tracer = tracer_to(hangs.port(), 1);
  {
    server::HttpRequest request;
    request.method = "POST";
    tracer->begin(request, "/")->ended(false);
  }
  asked.get_future().wait();
  tracer->shutdown(Duration(0));  // returns, or the test runs out of time
  EXPECT_EQ(tracer->export_counts()->dropped_unreachable, 1u);
  release.set_value();
}

}  // namespace
}  // namespace ef::testing
