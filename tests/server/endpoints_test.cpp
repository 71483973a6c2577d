// The other endpoints: health, keys, CORS, models, metrics, tokens.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "tests/server/rig.h"

namespace ef::testing {
namespace {

TEST(Endpoints, HealthIs503UntilTheModelIsThere) {
  RigSetup setup;
  setup.load = false;
  ServerRig rig(setup);
  for (const char* path : {"/health", "/v1/health", "/v1/models", "/props", "/slots", "/metrics"}) {
    const HttpAnswer answer = rig.get(path);
    EXPECT_EQ(answer.status, 503) << path;
    EXPECT_EQ(answer.json()["error"]["message"], "Loading model");
    EXPECT_EQ(answer.json()["error"]["type"], "unavailable_error");
    EXPECT_EQ(answer.json()["error"]["code"], 503);
    EXPECT_EQ(answer.headers.at("retry-after"), "5");
  }
  EXPECT_EQ(rig.post("/v1/completions", completion_body("x")).status, 503);
  rig.load();
  EXPECT_EQ(rig.get("/health").json(), Json::parse(R"({"status": "ok"})"));
}

TEST(Endpoints, E14_KeysGuardAllButHealth) {
  RigSetup setup;
  setup.server.api_key = {"secret\nother", "with,comma"};
  setup.server.cors_origins = "https://a.example";
  ServerRig rig(setup);
  EXPECT_EQ(rig.get("/health").status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/props", "/slots", "/nowhere"}) {
    const HttpAnswer answer = rig.get(path);
    EXPECT_EQ(answer.status, 401) << path;
    EXPECT_EQ(answer.json()["error"]["type"], "authentication_error");
    EXPECT_EQ(answer.json()["error"]["message"], "Invalid API Key");
  }
  EXPECT_EQ(rig.post("/v1/completions", completion_body("x", 1)).status, 401);
  for (const char* header : {"Authorization: Bearer wrong\r\n", "Authorization: Bearer secre\r\n",
                             "Authorization: Bearer \r\n", "Authorization: secret\r\n", "X-Api-Key: secretsecret\r\n"})
    EXPECT_EQ(rig.get("/v1/models", header).status, 401) << header;
  for (const char* header : {"Authorization: Bearer secret\r\n", "authorization: bearer secret\r\n",
                             "X-Api-Key: other\r\n", "X-Api-Key: with,comma\r\n"})
    EXPECT_EQ(rig.get("/v1/models", header).status, 200) << header;
  // A preflight brings no key.
  Client client(rig.port());
  client.send(Client::request("OPTIONS", "/v1/chat/completions", "",
                              "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n"));
  const HttpAnswer preflight = client.answer();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "https://a.example");
  EXPECT_NE(preflight.headers.at("access-control-allow-headers").find("Authorization"), std::string::npos);
  client.send(Client::request("OPTIONS", "/v1/completions", "",
                              "Origin: https://a.example\r\nAccess-Control-Request-Headers: x-stainless-os\r\n"));
  EXPECT_EQ(client.answer().headers.at("access-control-allow-headers"), "x-stainless-os");
}

TEST(Endpoints, AnEmptyKeyIsNoKey) {
  RigSetup setup;
  setup.load = false;
  for (const char* key : {"", "\n", " "}) {
    setup.server.api_key = {key};
    EXPECT_THROW(ServerRig{setup}, ConfigError) << '"' << key << '"';
  }
}

TEST(Endpoints, OriginsAreAllowedByNameOnly) {
  RigSetup setup;
  setup.server.cors_origins = "https://a.example, https://b.example";
  ServerRig rig(setup);
  EXPECT_EQ(rig.get("/health", "Origin: https://b.example\r\n").headers.at("access-control-allow-origin"),
            "https://b.example");
  EXPECT_FALSE(rig.get("/health", "Origin: https://c.example\r\n").headers.contains("access-control-allow-origin"));
  EXPECT_FALSE(
      shared_rig().get("/health", "Origin: https://a.example\r\n").headers.contains("access-control-allow-origin"));
}

TEST(Endpoints, OriginsThatNoBrowserSendsAreRefused) {
  RigSetup setup;
  setup.load = false;
  for (const char* origin : {"foo", "https://", "https://a.example/", "https://a.example, b.example"}) {
    setup.server.cors_origins = origin;
    EXPECT_THROW(ServerRig{setup}, ConfigError) << origin;
  }
}

TEST(Endpoints, ProbesOfALoadingServerAreNoWarnings) {
  std::atomic<int> lines{0};
  RigSetup setup;
  setup.load = false;
  setup.log = [&](LogLevel, std::string_view) { ++lines; };
  ServerRig rig(setup);
  EXPECT_EQ(rig.get("/health").status, 503);
  EXPECT_EQ(lines, 0);
}

TEST(Endpoints, ModelsAndProps) {
  const Json models = shared_rig().get("/v1/models").json();
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["id"], "demo-Q5_K_M.gguf");
  EXPECT_EQ(models["data"][0]["object"], "model");
  EXPECT_EQ(models["data"][0]["meta"]["n_vocab"], 16384);
  EXPECT_EQ(models["data"][0]["meta"]["n_expert"], 32);
  const Json props = shared_rig().get("/props").json();
  EXPECT_EQ(props["total_slots"], 4);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 2048);
  EXPECT_NE(props["chat_template"].get<std::string>().find("im_start"), std::string::npos);
}

TEST(Endpoints, OneModelByItsName) {
  RigSetup setup;
  setup.server.alias = "house/a model";
  ServerRig rig(setup);
  const Json listed = rig.get("/v1/models").json()["data"][0];
  for (const char* path : {"/v1/models/house/a%20model", "/v1/models/house%2Fa%20model", "/models/house%2fa%20model"})
    EXPECT_EQ(rig.get(path).json(), listed) << path;
  for (const char* path : {"/v1/models/gpt-4o", "/v1/models/", "/v1/models/house", "/v1/models/house%2Fa%20model%"}) {
    const HttpAnswer answer = rig.get(path);
    EXPECT_EQ(answer.status, 404) << path;
    const Json error = answer.json()["error"];
    EXPECT_EQ(error["code"], "model_not_found");
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], "model");
  }
  EXPECT_EQ(rig.get("/v1/models/gpt-4o").json()["error"]["message"], "The model 'gpt-4o' does not exist");
  EXPECT_EQ(rig.post("/v1/models/gpt-4o", Json::object()).status, 405);
}

TEST(Endpoints, EmbeddingsAreRefusedClearly) {
  const HttpAnswer answer = shared_rig().post("/v1/embeddings", {{"input", "x"}});
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("embeddings are not supported"), std::string::npos);
}

TEST(Endpoints, UnknownPathsAndMethods) {
  EXPECT_EQ(shared_rig().get("/v1/nothing").status, 404);
  const HttpAnswer answer = shared_rig().get("/v1/completions");
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.headers.at("allow"), "POST");
}

TEST(Endpoints, TokensAndBack) {
  ServerRig& rig = shared_rig();
  const std::string text = "The cat \xF0\x9F\x90\x88 said \xE4\xBD\xA0\xE5\xA5\xBD.";
  const Json ids = rig.post("/tokenize", {{"content", text}}).json()["tokens"];
  EXPECT_EQ(ids.size(), rig.tokenizer().encode(text, {false, true}).size());
  EXPECT_EQ(rig.post("/detokenize", {{"tokens", ids}}).json()["content"], text);
  const Json pieces = rig.post("/tokenize", {{"content", text}, {"with_pieces", true}}).json()["tokens"];
  std::string joined;
  for (const Json& piece : pieces)
    if (piece["piece"].is_string())
      joined += piece["piece"].get<std::string>();
    else
      for (const Json& byte : piece["piece"]) joined += char(byte.get<int>());
  EXPECT_EQ(joined, text);
  EXPECT_EQ(rig.post("/tokenize", {{"content", 5}}).status, 400);
  EXPECT_EQ(rig.post("/detokenize", {{"tokens", {-1}}}).status, 400);
}

TEST(Endpoints, HealthOfTheExpertsNamesRanges) {
  const Json json = shared_rig().get("/health/experts").json();
  EXPECT_TRUE(json["status"] == "ok" || json["status"] == "attention");
  std::set<std::string> names;
  for (const Json& m : json["metrics"]) {
    names.insert(m["name"]);
    ASSERT_EQ(m["range"].size(), 2u);  // null: no bound on that side
    if (m["range"][1].is_number()) {
      EXPECT_LE(m["range"][0].get<double>(), m["range"][1].get<double>());
    }
    EXPECT_EQ(m["advice"].get<std::string>().empty(), m["healthy"].get<bool>());
  }
  const std::set<std::string> expected{"prediction_hit_rate", "expert_swap_rate", "token_defer_rate",
                                       "cache_utilization", "p99_latency"};
  EXPECT_EQ(names, expected);
}

TEST(Endpoints, SlotsSayWhatTheyDo) {
  StepGate gate;
  RigSetup setup;
  setup.parallel = 1;
  setup.before_step = gate.hook();
  ServerRig rig(setup);
  rig.before_end = [&] { gate.open(); };
  EXPECT_EQ(rig.get("/slots?fail_on_no_slot=1").status, 200);
  Client client(rig.port());
  client.send(Client::request("POST", "/v1/completions", completion_body(kStory, 20).dump()));
  gate.permit(3);
  gate.wait_arrived(4);
  const Json slot = rig.get("/slots").json()[0];
  EXPECT_EQ(slot["is_processing"], true);
  EXPECT_EQ(slot["state"], "decode");
  EXPECT_EQ(rig.get("/slots?fail_on_no_slot=1").status, 503);
}

// The text form: name{labels} value, lines of a metric together, each with HELP and TYPE before it.
std::map<std::string, double> parse_metrics(const std::string& text) {
  std::map<std::string, double> values;
  std::map<std::string, std::string> types;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("# TYPE ")) {
      const size_t space = line.find(' ', 7);
      EXPECT_FALSE(types.contains(line.substr(7, space - 7))) << line;
      types[line.substr(7, space - 7)] = line.substr(space + 1);
    }
    if (line.starts_with("#")) continue;
    const size_t brace = line.find('{'), space = line.rfind(' ');
    EXPECT_NE(brace, std::string::npos) << line;
    std::string name = line.substr(0, brace);
    for (const char* suffix : {"_bucket", "_sum", "_count"})
      if (name.ends_with(suffix) && types.contains(name.substr(0, name.size() - std::string(suffix).size())))
        name.resize(name.size() - std::string(suffix).size());
    EXPECT_TRUE(types.contains(name)) << line;
    values[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return values;
}

TEST(Endpoints, E15_MetricsAreExpositionTextWithPlausibleValues) {
  RigSetup setup;
  setup.parallel = 2;
  setup.server.alias = "my \"model\"";
  ServerRig rig(setup);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rig.post("/v1/completions", completion_body(kStory, 10)).status, 200);
  ASSERT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
  const HttpAnswer answer = rig.get("/metrics");
  EXPECT_TRUE(answer.headers.at("content-type").starts_with("text/plain; version=0.0.4"));
  EXPECT_NE(answer.body.front(), '"');
  const auto values = parse_metrics(answer.body);
  const std::string labels = "{model_name=\"my \\\"model\\\"\",engine=\"0\"";
  const auto value = [&](const std::string& name, const std::string& more = "") {
    const auto it = values.find(name + labels + more + "}");
    EXPECT_NE(it, values.end()) << name;
    return it == values.end() ? -1 : it->second;
  };
  EXPECT_EQ(value("vllm:generation_tokens_total"), 30);
  EXPECT_EQ(value("vllm:request_success_total", ",finished_reason=\"length\""), 3);
  EXPECT_EQ(value("vllm:time_to_first_token_seconds_count"), 3);
  EXPECT_GT(value("vllm:time_to_first_token_seconds_sum"), 0);
  EXPECT_EQ(value("vllm:inter_token_latency_seconds_count"), 27);
  EXPECT_EQ(value("vllm:inter_token_latency_seconds_bucket", ",le=\"+Inf\""), 27);
  EXPECT_GE(value("vllm:e2e_request_latency_seconds_sum"), value("vllm:time_to_first_token_seconds_sum"));
  EXPECT_EQ(value("vllm:num_requests_running"), 0);
  EXPECT_GT(value("expertflow:expert_hits_total") + value("expertflow:expert_misses_total"), 0);
}

}  // namespace
}  // namespace ef::testing
