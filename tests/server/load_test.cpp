// The load generator's client against the server, and against a server that misbehaves.
#include "apps/server/load_client.h"

#include <gtest/gtest.h>

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
