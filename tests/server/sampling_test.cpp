// Which traces are sent, and what is in them, without a model and a server.
#include <mutex>

#include "expertflow/base/errors.h"
#include "tests/server/received_spans.h"

namespace ef::testing {
namespace {

using namespace std::chrono_literals;
using server::Tracer;

// What is sent of requests that end in such and such a way.
class Sampling : public ::testing::Test {
 protected:
  class Drain final : public server::SpanTransport {
   public:
    explicit Drain(Sampling& test) : test_(test) {}
    server::SendResult send(const std::string& json) override {
      const std::lock_guard lock(test_.mutex_);
      test_.received_.take(Json::parse(json));
      return {};
    }
    void cancel() override {}

   private:
    Sampling& test_;
  };
  std::shared_ptr<Tracer> tracer(double sample, server::TraceSources from = sources(42)) {
    server::ExportOptions options;
    options.most_spans = 1 << 20;
    auto exporter = std::make_unique<server::SpanExporter>(std::make_unique<Drain>(*this), server::Attributes{}, "1",
                                                           options, kClock, kQuiet);
    return std::make_shared<Tracer>(std::move(exporter), sample, std::move(from));
  }
  static server::HttpRequest request(const char* traceparent = nullptr) {
    server::HttpRequest r;
    r.method = "POST", r.path = "/v1/completions";
    if (traceparent) r.headers["traceparent"] = traceparent;
    return r;
  }
  static std::string one(Tracer& tracer, const char* traceparent, int status) {
    const auto trace = tracer.begin(request(traceparent), "/v1/completions");
    trace->answered(status);
    trace->ended(false);
    return trace->traceparent();
  }
  size_t sent() {
    const std::lock_guard lock(mutex_);
    return received_.spans.size();
  }
  std::mutex mutex_;
  Received received_;
};

TEST_F(Sampling, AShareOfTheTracesByTheirIds) {
  const auto t = tracer(0.05);
  int expected = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string own = one(*t, nullptr, 200);
    // The specification's R >= T, by the leading hex digits: T = 0.95 * 2^56 = 0xf3333333333333.
    const bool is = own.substr(21, 14) >= "f3333333333333";
    expected += is;
    EXPECT_EQ(own.substr(52), is ? "-01" : "-00");
  }
  t->shutdown(10s);
  EXPECT_EQ(sent(), size_t(expected));
  EXPECT_NEAR(expected, 200, 45);  // three standard deviations of 4,000 draws; the seed is fixed
  EXPECT_EQ(t->counts().sampled, uint64_t(expected));
  EXPECT_EQ(t->counts().dropped, uint64_t(4000 - expected));
}

TEST_F(Sampling, AllOrNothing) {
  const auto none = tracer(0), all = tracer(1);
  for (int i = 0; i < 100; ++i) one(*none, nullptr, 200), one(*all, nullptr, 200);
  none->shutdown(10s), all->shutdown(10s);
  EXPECT_EQ(none->counts().dropped, 100u);
  EXPECT_EQ(all->counts().sampled, 100u);
  EXPECT_EQ(sent(), 100u);
}

TEST_F(Sampling, TheCallersFlagIsHeeded) {
  const auto none = tracer(0), all = tracer(1);
  EXPECT_TRUE(one(*none, kParent, 200).ends_with("-01"));
  EXPECT_TRUE(one(*all, kUnsampled, 200).ends_with("-00"));
  none->shutdown(10s), all->shutdown(10s);
  EXPECT_EQ(none->counts().sampled, 1u);
  EXPECT_EQ(all->counts().dropped, 1u);
}

TEST_F(Sampling, EveryFailureIsSentAndNoMistakeOfTheClients) {
  const auto t = tracer(0);
  for (const int status : {200, 400, 401, 404, 422, 429}) EXPECT_TRUE(one(*t, nullptr, status).ends_with("-00"));
  for (const int status : {500, 503}) EXPECT_TRUE(one(*t, kUnsampled, status).ends_with("-01")) << status;
  {  // a stream that breaks off has said 200 already
    const auto trace = t->begin(request(), "/v1/completions");
    trace->describe("chat", "m", {});
    trace->answered(200);
    trace->on_error(std::make_exception_ptr(DeviceError("the disk is gone")));
    CompletionTimes times;
    times.submitted = kClock.now(), times.ended = times.submitted + 1ms;
    trace->on_end(times, "error");
    trace->ended(false);
  }
  {  // a client that leaves is no failure
    const auto trace = t->begin(request(), "/v1/completions");
    trace->on_end({}, "abort");
    trace->ended(true);
  }
  t->shutdown(10s);
  EXPECT_EQ(t->counts().failed, 3u);
  EXPECT_EQ(t->counts().dropped, 7u);
  const Json& answer = received_.find("chat m");
  EXPECT_EQ(answer["status"]["code"], 2);
  EXPECT_EQ(answer["status"]["message"], "the disk is gone");
  int errors = 0;
  for (const Json& span : received_.spans) {
    if (span["name"] != "POST /v1/completions") continue;
    EXPECT_EQ(span["status"]["code"], 2);
    const Json type = Received::attribute(span, "error.type");
    errors += type == "500" || type == "503" || type == "_OTHER";
  }
  EXPECT_EQ(errors, 3);
}

TEST_F(Sampling, TimesAreTheClocksFromTheRequestOn) {
  ManualClock clock;
  clock.advance(100s);
  server::TraceSources from;
  from.clock = &clock;
  from.unix_nanos = [] { return 1'700'000'000'000'000'000ull; };
  from.random = [n = 0]() mutable { return uint64_t(++n); };
  const auto t = tracer(1, from);
  {
    const auto trace = t->begin(request(), "/v1/completions");
    trace->describe("chat", "m", {{"x", int64_t(1)}});
    CompletionTimes times;
    times.submitted = 100s + 1ms, times.started = 100s + 3ms, times.first_token = 100s + 10ms,
    times.ended = 100s + 50ms;
    times.prompt_tokens = 9, times.cached_tokens = 4, times.generated_tokens = 5;
    times.prefill_stall = 0.25, times.decode_stall = 0.5;
    trace->on_end(times, "stop");
    clock.advance(51ms);
    trace->answered(200);
    trace->ended(false);
  }
  t->shutdown(10s);
  const auto span = [&](const char* name, uint64_t begin_ms, uint64_t end_ms) {
    const Json& s = received_.find(name);
    EXPECT_EQ(s["startTimeUnixNano"], std::to_string(1'700'000'000'000'000'000ull + begin_ms * 1'000'000)) << name;
    EXPECT_EQ(s["endTimeUnixNano"], std::to_string(1'700'000'000'000'000'000ull + end_ms * 1'000'000)) << name;
    EXPECT_EQ(s["traceId"], "00000000000000010000000000000002");
    return s;
  };
  EXPECT_EQ(span("POST /v1/completions", 0, 51)["spanId"], "0000000000000003");
  const Json chat = span("chat m", 1, 50);
  EXPECT_EQ(Received::attribute(chat, "expertflow.expert.stall_seconds"), 0.75);
  EXPECT_EQ(Received::attribute(chat, "x"), "1");
  EXPECT_NEAR(Received::attribute(chat, "gen_ai.latency.time_to_first_token").get<double>(), 0.009, 1e-12);
  EXPECT_NEAR(Received::attribute(chat, "gen_ai.latency.time_in_queue").get<double>(), 0.002, 1e-12);
  span("queue", 1, 3);
  EXPECT_EQ(Received::attribute(span("prefill", 3, 10), "gen_ai.usage.cache_read.input_tokens"), "4");
  EXPECT_EQ(Received::attribute(span("decode", 10, 50), "expertflow.expert.stall_seconds"), 0.5);
}

}  // namespace
}  // namespace ef::testing
