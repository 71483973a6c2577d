// bench serve through the binary, against a server that answers at once with two words and notes what it was asked.
#ifdef EF_SERVER
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/cli.h"
#include "tests/support/http_server.h"

namespace ef::testing {
namespace {

using Json = nlohmann::json;

ServedAnswer two_words(const ServedRequest& request) {
  const Json body = Json::parse(request.body);
  ServedAnswer answer;
  const auto event = [&](const Json& choices, const Json& usage) {
    answer.body += "data: " + Json{{"choices", choices}, {"usage", usage}}.dump() + "\n\n";
  };
  for (const char* word : {"one", " two"}) {
    Json choice{{"text", word}};
    if (body.contains("messages")) choice = {{"delta", {{"content", word}}}};
    event(Json::array({choice}), nullptr);
  }
  event(Json::array(),
        {{"prompt_tokens", 5}, {"completion_tokens", 2}, {"prompt_tokens_details", {{"cached_tokens", 3}}}});
  answer.body += "data: [DONE]\n\n";
  return answer;
}

Arguments load(const HttpServer& server, const Arguments& more) {
  return Arguments{"bench", "serve", "--url", server.url(), "--rate", "0", "--concurrency", "1"} + more;
}
Json json_of(const Arguments& arguments) {
  const auto result = expertflow(arguments + Arguments{"-o", "json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return Json::parse(result.out, nullptr, false);
}
std::vector<Json> bodies_of(const HttpServer& server) {
  std::vector<Json> bodies;
  for (const ServedRequest& r : server.requests()) bodies.push_back(Json::parse(r.body));
  return bodies;
}
std::vector<Json> asked(const Arguments& more) {
  const HttpServer server(two_words);
  (void)json_of(load(server, {"--requests", "8"}) + more);
  return bodies_of(server);
}

TEST(CliBenchServe, JsonHoldsWhatCameAndTheRequestsAreThoseAskedFor) {
  const HttpServer server(two_words);
  const Json j =
      json_of(load(server, {"--requests", "10", "--prompts", "3-5:70,20-30:30", "--max-tokens", "7", "--cold", "4",
                            "--api-key", "secret", "--seed", "5", "--sla-ttft", "60", "--sla-itl", "60"}));
  EXPECT_EQ(j["concurrency"], 1);
  EXPECT_EQ(j["seed"], 5);
  EXPECT_EQ(j["prompts"], "3-5:70,20-30:30");
  const Json& results = j["results"];
  EXPECT_EQ(results["cold"]["requests"], 4);
  EXPECT_EQ(results["warm"]["requests"], 6);
  const Json& all = results["all"];
  EXPECT_EQ(all["requests"], 10);
  EXPECT_EQ(all["failed"], 0);
  EXPECT_TRUE(all["errors"].empty());
  EXPECT_EQ(all["prompt_tokens"], 50);
  EXPECT_EQ(all["cached_tokens"], 30);
  EXPECT_EQ(all["output_tokens"], 20);
  EXPECT_EQ(all["sla"]["share"], 1.0);
  EXPECT_NEAR(all["output_tokens_per_second"].get<double>() * all["seconds"].get<double>(), 20, 1e-6);
  for (const char* what : {"ttft_seconds", "itl_seconds", "e2e_seconds"}) {
    const Json& s = all[what];
    EXPECT_LE(s["p50"], s["p95"]) << what;
    EXPECT_LE(s["p95"], s["p99"]) << what;
    EXPECT_LE(s["p99"], s["max"]) << what;
  }
  ASSERT_EQ(server.requests().size(), 10u);
  for (const ServedRequest& r : server.requests()) {
    EXPECT_EQ(r.path, "/v1/completions");
    EXPECT_EQ(r.header("authorization"), "Bearer secret");
  }
  for (const Json& body : bodies_of(server)) {
    EXPECT_EQ(body["max_tokens"], 7);
    EXPECT_EQ(body["stream"], true);
    EXPECT_EQ(body["stream_options"]["include_usage"], true);
    const std::string prompt = body["prompt"];
    const auto words = 1 + std::count(prompt.begin(), prompt.end(), ' ');
    EXPECT_TRUE((words >= 3 && words <= 5) || (words >= 20 && words <= 30)) << words;
  }
}

TEST(CliBenchServe, ASeedGivesTheSameRequests) {
  const auto first = asked({"-s", "1"});
  EXPECT_EQ(first.size(), 8u);
  EXPECT_EQ(asked({"-s", "1"}), first);
  EXPECT_NE(asked({"-s", "2"}), first);
}

TEST(CliBenchServe, PoissonArrivalsAndChats) {
  const HttpServer server(two_words);
  const auto result =
      expertflow({"bench", "serve", "--url", server.url() + "/api", "--rate", "500", "--requests", "8", "--chat"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(holds(result.out, "| all 8 | 0 | ")) << result.out;
  EXPECT_FALSE(holds(result.out, "cold")) << result.out;
  ASSERT_EQ(server.requests().size(), 8u);
  EXPECT_EQ(server.requests()[0].path, "/api/v1/chat/completions");
  for (const Json& body : bodies_of(server)) EXPECT_EQ(body["messages"][0]["role"], "user");
}

TEST(CliBenchServe, WordsComeFromAText) {
  const TempFolder folder;
  write_file(folder.path / "words", "a b\n c\td");
  for (const Json& body : asked({"--text", folder.path / "words", "--prompts", "4-4:1"})) {
    const std::string around = "a b c d a b c d", prompt = body["prompt"];
    EXPECT_TRUE(holds(around, prompt)) << prompt;
  }
}

TEST(CliBenchServe, FailuresAreCountedByMessageAndTheExitCodeSaysSo) {
  int served = 0;
  const HttpServer server([&](const ServedRequest& request) {
    ServedAnswer answer = two_words(request);
    if (++served == 2) answer.status = 503, answer.body = "busy";
    if (served == 3) answer.body.resize(answer.body.find("data: [DONE]"));
    if (served == 4) answer.body = "data: {\"choices\": {\"text\": 5}}\n\n";
    return answer;
  });
  const auto result = expertflow(load(server, {"--requests", "5", "-o", "json"}));
  EXPECT_EQ(result.exit_code, 4) << result.err;
  const Json all = Json::parse(result.out)["results"]["all"];
  EXPECT_EQ(all["failed"], 3);
  EXPECT_EQ(
      all["errors"],
      (Json{{"status 503: busy", 1}, {"the stream broke off", 1}, {"an event of another form than OpenAI's", 1}}));
  EXPECT_LE(all["sla"]["share"], 0.4);
}

TEST(CliBenchServe, NonsenseIsRefusedByName) {
  for (const std::string flag :
       {"--output=csv", "--requests=0", "--rate=-1", "--rate=0", "--cold=100", "--timeout=0", "--sla-ttft=nan",
        "--sla-itl=-5", "--max-tokens=-3", "--url=https://127.0.0.1", "--text=/nowhere/at/all", "--prompts=5",
        "--prompts=9-5:1", "--prompts=1-5:0", "--prompts=1-5:1,x", "--nowhere"}) {
    const std::string named = flag.substr(0, flag.find('='));
    EXPECT_REFUSED(expertflow({"bench", "serve", flag}), 2, named.c_str());
  }
}

}  // namespace
}  // namespace ef::testing
#endif
