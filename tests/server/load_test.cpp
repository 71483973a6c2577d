// The load generator: its plan, its report, and its client against the server.
#include "apps/server/load_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/server/load_plan.h"
#include "expertflow/base/errors.h"
#include "tests/server/rig.h"

namespace ef::testing {
namespace {

server::LoadTarget target_of(const std::string& url) { return server::parse_target(url, "/v1/completions"); }

std::string stream_body(const std::string& prompt, int tokens) {
  Json body = completion_body(prompt, tokens);
  body["stream"] = true;
  body["ignore_eos"] = true;
  body["stream_options"] = {{"include_usage", true}};
  return body.dump();
}

TEST(Load, TargetsAreRead) {
  const auto t = target_of("http://example.org:8000/api/");
  EXPECT_EQ(t.host, "example.org");
  EXPECT_EQ(t.port, 8000);
  EXPECT_EQ(t.path, "/api/v1/completions");
  EXPECT_EQ(target_of("http://h").port, 80);
  for (const char* bad : {"https://h", "h:80", "http://", "http://h:x", "http://h:0", "http://h:99999"})
    EXPECT_THROW(target_of(bad), ConfigError) << bad;
}

TEST(Load, EveryAnswerIsRecorded) {
  const std::string url = "http://127.0.0.1:" + std::to_string(shared_rig().port());
  std::vector<server::LoadRequest> requests;
  for (int i = 0; i < 12; ++i) requests.push_back({stream_body(kStory, 4 + i), -1});
  const auto records = server::run_load(target_of(url), requests, 3, 60);
  ASSERT_EQ(records.size(), 12u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].error, "");
    EXPECT_EQ(records[i].status, 200);
    EXPECT_EQ(records[i].output_tokens, int64_t(4 + i));
    EXPECT_GT(records[i].prompt_tokens, 5);
    EXPECT_GT(records[i].first, records[i].due);
    EXPECT_GE(records[i].end, records[i].first);
    EXPECT_LE(records[i].gaps.size(), 3 + i);
  }
  EXPECT_GT(records[11].due, records[0].due);  // a closed loop: later ones wait for earlier ones
}

TEST(Load, RequestsAreSentWhenTheyAreDue) {
  const std::string url = "http://127.0.0.1:" + std::to_string(shared_rig().port());
  const auto records =
      server::run_load(target_of(url), {{stream_body("a cat", 2), 0.05}, {stream_body("a dog", 2), 0.0}}, 0, 60);
  EXPECT_EQ(records[0].due, 0.05);
  EXPECT_GE(records[0].first, 0.05);
  EXPECT_EQ(records[1].due, 0.0);
}

TEST(Load, FailuresSayWhy) {
  const std::string url = "http://127.0.0.1:" + std::to_string(shared_rig().port());
  auto records = server::run_load(target_of(url), {{"{", -1}}, 1, 60);
  EXPECT_EQ(records[0].status, 400);
  EXPECT_NE(records[0].error.find("status 400"), std::string::npos);
  int closed = 0;
  {
    ServerRig gone;
    closed = gone.port();
  }
  records =
      server::run_load(target_of("http://127.0.0.1:" + std::to_string(closed)), {{stream_body("x", 1), -1}}, 1, 60);
  EXPECT_NE(records[0].error.find("cannot connect"), std::string::npos);
}

std::vector<double> arrivals(int64_t seed) {
  server::LoadPlan plan;
  plan.prompts = "1-1:1";
  plan.rate = 8;
  plan.requests = 4000;
  plan.seed = seed;
  std::vector<double> at;
  for (const auto& r : server::make_requests(plan, nullptr)) at.push_back(r.at);
  return at;
}

// Gaps of a Poisson process: mean and deviation 1/rate, and e^-1 of them are longer than that.
TEST(LoadPlan, ArrivalsArePoissonFromASeed) {
  const std::vector<double> at = arrivals(1);
  EXPECT_EQ(arrivals(1), at);
  EXPECT_NE(arrivals(2), at);
  double last = 0, sum = 0, squares = 0, longer = 0;
  for (const double t : at) {
    const double gap = t - last;
    ASSERT_GT(gap, 0);
    sum += gap, squares += gap * gap, longer += gap > 1.0 / 8;
    last = t;
  }
  const double n = double(at.size()), mean = sum / n;
  EXPECT_NEAR(mean * 8, 1, 0.05);
  EXPECT_NEAR(std::sqrt(squares / n - mean * mean) * 8, 1, 0.08);
  EXPECT_NEAR(longer / n, std::exp(-1.0), 0.03);
}

TEST(LoadPlan, PromptsFollowTheMix) {
  server::LoadPlan plan;
  plan.prompts = "2-3:70,10-12:30";
  plan.rate = 0;
  plan.requests = 2000;
  std::map<int64_t, int> lengths;
  for (const auto& r : server::make_requests(plan, nullptr)) {
    EXPECT_LT(r.at, 0);  // a closed loop
    const std::string prompt = Json::parse(r.body)["prompt"];
    ++lengths[1 + std::count(prompt.begin(), prompt.end(), ' ')];
  }
  EXPECT_EQ(lengths.size(), 5u);
  EXPECT_NEAR(lengths[2] + lengths[3], 1400, 60);
  EXPECT_NEAR(lengths[2], lengths[3], 120);
  EXPECT_EQ(lengths[10] + lengths[11] + lengths[12], 2000 - lengths[2] - lengths[3]);
}

TEST(LoadPlan, TheReportHoldsPercentilesAndTheShareWithinTheServiceLevel) {
  std::vector<server::LoadRecord> records(102);
  for (size_t i = 0; i < 100; ++i) {
    server::LoadRecord& r = records[i];
    r.due = double(i);
    r.first = r.due + double(i + 1) / 100;  // 0.01 to 1 s
    r.gaps = {0.1, i < 50 ? 0.1 : 0.5};
    r.end = r.first + 1;
    r.prompt_tokens = 10, r.cached_tokens = 4, r.output_tokens = 3;
  }
  records[100].error = records[101].error = "no answer in time";
  const auto report = server::load_report(records, 0.405, 0.2);
  EXPECT_EQ(report["requests"], 102);
  EXPECT_EQ(report["failed"], 2);
  EXPECT_EQ(report["errors"]["no answer in time"], 2);
  EXPECT_DOUBLE_EQ(report["seconds"], 101);
  EXPECT_DOUBLE_EQ(report["requests_per_second"], 100.0 / 101);
  EXPECT_DOUBLE_EQ(report["output_tokens_per_second"], 300.0 / 101);
  EXPECT_EQ(report["prompt_tokens"], 1000);
  EXPECT_EQ(report["cached_tokens"], 400);
  const auto& ttft = report["ttft_seconds"];
  EXPECT_NEAR(ttft["mean"].get<double>(), 0.505, 1e-9);
  EXPECT_NEAR(ttft["p50"].get<double>(), 0.50, 1e-9);
  EXPECT_NEAR(ttft["p95"].get<double>(), 0.95, 1e-9);
  EXPECT_NEAR(ttft["p99"].get<double>(), 0.99, 1e-9);
  EXPECT_NEAR(ttft["max"].get<double>(), 1, 1e-9);
  EXPECT_DOUBLE_EQ(report["itl_seconds"]["p50"], 0.1);
  EXPECT_DOUBLE_EQ(report["itl_seconds"]["p95"], 0.5);
  EXPECT_NEAR(report["sla"]["share"].get<double>(), 40.0 / 102, 1e-3);  // of the first fifty forty
  records.resize(1);
  records[0].error = "gone";
  EXPECT_TRUE(server::load_report(records, 1, 1)["ttft_seconds"].is_null());
}

TEST(Load, ThePageIsSelfContained) {
  const HttpAnswer page = shared_rig().get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_TRUE(page.headers.at("content-type").starts_with("text/html"));
  EXPECT_NE(page.headers.at("content-security-policy").find("default-src 'none'"), std::string::npos);
  EXPECT_LT(page.body.size(), 120000u);
  EXPECT_EQ(page.body.find("http://"), std::string::npos);
  EXPECT_EQ(page.body.find("https://"), std::string::npos);
  shared_rig().post("/v1/completions", completion_body(kStory, 8));
  const Json state = shared_rig().get("/dashboard.json").json();
  ASSERT_EQ(state["layers"].size(), 12u);
  uint64_t uses = 0;
  for (const Json& n : state["layers"][0]["uses"]) uses += n.get<uint64_t>();
  EXPECT_EQ(state["layers"][0]["state"].get<std::string>().size(), 32u);
  EXPECT_EQ(uses % 4, 0u);  // four experts a token
  EXPECT_GE(uses, 4u * 8);
}

}  // namespace
}  // namespace ef::testing
