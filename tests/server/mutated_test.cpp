// Requests that are nearly right: bytes changed, cut, doubled and put in; members of bodies replaced by whatever JSON
// there is. No answer is a 500, the server lives, and its next answer is the right one. Seeds are fixed.
#include <gtest/gtest.h>

#include <random>

#include "tests/server/rig.h"

namespace ef::testing {
namespace {

RigSetup small() {
  RigSetup setup;
  setup.ctx_size = 128;  // what a changed max_tokens can cost
  setup.server.max_body_mib = 1;
  return setup;
}

std::vector<std::pair<std::string, Json>> bodies() {
  Json plain = completion_body("The cat", 3), stream = plain, many = plain, echo = plain;
  stream["stream"] = true;
  stream["stream_options"] = {{"include_usage", true}};
  many["prompt"] = {"a", "b"};
  many["n"] = 2;
  many["stop"] = {"x", "the"};
  many["logit_bias"] = {{"5", 1.5}, {"7", false}};
  many["stop_token_ids"] = {3};
  echo["echo"] = true;
  echo["logprobs"] = 2;
  echo["prompt"] = {5, 6, 7};
  Json chat = chat_body("Continue: the cat", 3), schema = chat, tools = chat;
  chat["logprobs"] = true;
  chat["top_logprobs"] = 2;
  chat["seed"] = 3;
  chat["chat_template_kwargs"] = {{"enable_thinking", false}};
  schema["response_format"] = {
      {"type", "json_schema"},
      {"json_schema",
       {{"name", "x"},
        {"schema",
         {{"type", "object"},
          {"$defs", {{"d", {{"type", {"string", "null"}}, {"maxLength", 3}}}}},
          {"properties",
           {{"a", {{"anyOf", {{{"$ref", "#/$defs/d"}}, {{"enum", {1, "x"}}}}}}},
            {"b",
             {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}, {"minItems", 1}, {"maxItems", 2}}},
            {"c", {{"type", "string"}, {"format", "date"}}}}},
          {"required", {"a"}},
          {"additionalProperties", false}}}}}};
  tools["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}}};
  tools["tool_choice"] = {{"type", "function"}, {"function", {{"name", "f"}}}};
  tools["messages"] = {{{"role", "system"}, {"content", {{{"type", "text"}, {"text", "x"}}}}},
                       {{"role", "assistant"},
                        {"content", nullptr},
                        {"tool_calls", {{{"id", "1"}, {"function", {{"name", "f"}, {"arguments", "{\"a\": 1}"}}}}}}},
                       {{"role", "tool"}, {"tool_call_id", "1"}, {"content", "y"}}};
  const char *completions = "/v1/completions", *chats = "/v1/chat/completions";
  return {{completions, plain},
          {completions, stream},
          {completions, many},
          {completions, echo},
          {chats, chat},
          {chats, schema},
          {chats, tools},
          {"/tokenize", {{"content", "The cat"}, {"with_pieces", true}, {"add_special", false}}},
          {"/detokenize", {{"tokens", {1, 2, 300}}}},
          {"/apply-template", chat}};
}

const Json& some_value(std::mt19937_64& random) {
  static const Json kValues = {nullptr,
                               true,
                               0,
                               -1,
                               1,
                               2,
                               1.5,
                               -0.0,
                               1e300,
                               INT64_MIN,
                               INT64_MAX,
                               UINT64_MAX,
                               4294967296,
                               "",
                               "x",
                               "required",
                               "#/$defs/d",
                               "\xF0\x9F\x90\x88",
                               std::string("a\0b", 3),
                               std::string(3000, 'y'),
                               Json::array(),
                               Json::object(),
                               {1, "x", nullptr},
                               {{"type", "object"}},
                               {{"$ref", "#"}},
                               {{"a", {{"b", {{"c", {1, 2}}}}}}},
                               Json::array({Json::array({Json::array()})})};
  return kValues[random() % kValues.size()];
}

// A member anywhere in it gets another value, or goes, or a new one comes.
void change(Json& json, std::mt19937_64& random) {
  std::vector<Json*> all;
  const std::function<void(Json&)> walk = [&](Json& at) {
    all.push_back(&at);
    if (at.is_structured())
      for (Json& child : at) walk(child);
  };
  walk(json);
  Json& at = *all[random() % all.size()];
  switch (random() % 4) {
    case 0:
      if (at.is_object() && !at.empty()) {
        auto it = at.begin();
        std::advance(it, random() % at.size());
        at.erase(it.key());
        return;
      }
      [[fallthrough]];
    case 1:
      if (at.is_array()) {
        at.push_back(some_value(random));
        return;
      }
      [[fallthrough]];
    default:
      at = some_value(random);
  }
}

void expect_alive(ServerRig& rig, const std::string& expected) {
  const HttpAnswer answer = rig.post("/v1/completions", completion_body(kStory, 8));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["choices"][0]["text"], expected);
  ASSERT_TRUE(eventually([&] { return rig.loop().snapshot().scheduler.running == 0; }));
}

std::string expected_text(ServerRig& rig) {
  return rig.post("/v1/completions", completion_body(kStory, 8)).json()["choices"][0]["text"];
}

TEST(Mutated, MembersOfBodies) {
  ServerRig rig(small());
  const std::string expected = expected_text(rig);
  std::mt19937_64 random(1);
  int fine = 0, refused = 0;
  for (int round = 0; round < 60; ++round)
    for (const auto& [path, valid] : bodies()) {
      Json body = valid;
      for (uint64_t n = 1 + random() % 2; n-- > 0;) change(body, random);
      const HttpAnswer answer = rig.post(path, body);
      EXPECT_TRUE(answer.status == 200 || answer.status == 400)
          << answer.status << " " << answer.body << " for " << body;
      if (answer.status == 400) {
        EXPECT_TRUE(answer.json()["error"]["message"].is_string());
      }
      ++(answer.status == 200 ? fine : refused);
    }
  EXPECT_GT(fine, 50);
  EXPECT_GT(refused, 50);
  expect_alive(rig, expected);
}

TEST(Mutated, BytesOfRequests) {
  ServerRig rig(small());
  const std::string expected = expected_text(rig);
  using Texts = std::vector<std::string>;
  static const Texts kPieces{"\r\n",
                             "\n",
                             "\r\n\r\n",
                             "Transfer-Encoding: chunked\r\n",
                             "Content-Length: 5\r\n",
                             "Content-Length: -1\r\n",
                             "Content-Length: 18446744073709551616\r\n",
                             "Expect: 100-continue\r\n",
                             "Connection: close\r\n",
                             "HTTP/1.0",
                             "HTTP/9.9",
                             ": ",
                             std::string(1, '\0'),
                             "\xff\xfe",
                             "\\ud83d",
                             "[[[[[[[[",
                             "{\"a\":",
                             "1e999",
                             "-",
                             "\"",
                             "}",
                             std::string(5000, 'A')};
  std::mt19937_64 random(2);
  const std::string version = "HTTP/1.1 ";
  std::map<int, int> statuses;
  for (int round = 0; round < 60; ++round)
    for (const auto& [path, body] : bodies()) {
      std::string text = Client::request("POST", path, body.dump());
      if (round % 4 == 3) {  // in chunks
        const std::string json = body.dump();
        const size_t cut = json.size() / 2;
        text = "POST " + path + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
               fmt::format("{:x}\r\n{}\r\n{:x};a=b\r\n{}\r\n0\r\n\r\n", cut, json.substr(0, cut), json.size() - cut,
                           json.substr(cut));
      }
      for (uint64_t n = 1 + random() % 3; n-- > 0;) {
        const size_t at = random() % text.size(), length = std::min<size_t>(1 + random() % 40, text.size() - at);
        switch (random() % 5) {
          case 0:
            text[at] = char(random() % 256);
            break;
          case 1:
            text.erase(at, length);
            break;
          case 2:
            text.insert(at, text.substr(at, length));
            break;
          case 3:
            text.resize(at + 1);
            break;
          default:
            text.insert(at, kPieces[random() % kPieces.size()]);
        }
        if (text.empty()) text = "\r\n";
      }
      Client client(rig.port());
      try {
        client.send(text);
      } catch (const std::runtime_error&) {  // it was refused before it ended
      }
      client.shut_sending();
      const std::string all = client.rest();
      for (size_t at = 0; (at = all.find(version, at)) != std::string::npos; at += version.size())
        ++statuses[std::atoi(all.c_str() + at + version.size())];
      EXPECT_EQ(all.find("HTTP/1.1 500"), std::string::npos) << all << "\nfor\n" << text;
    }
  for (const int expected_status : {200, 400}) EXPECT_GT(statuses[expected_status], 3) << expected_status;
  EXPECT_EQ(statuses[500], 0);
  expect_alive(rig, expected);
}

}  // namespace
}  // namespace ef::testing
