// Answers of a given shape from models that reason and call in their family's way. The bundled model knows none of
// these ways: what makes it write so is the grammar alone.
#include <gtest/gtest.h>

#include "tests/server/rig.h"

namespace ef::testing {
namespace {

constexpr const char* kMessages =
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}{{ m.content }}\n{% endfor %}";
struct Family {
  const char* name;
  const char* ways;  ///< marks by which the template is known
};
const Family kHarmony{"harmony", "{# <|channel|> #}<|start|>assistant"};
const Family kDeepSeek3{"deepseek_v3", "{# <｜tool▁calls▁begin｜> ```json #}<｜Assistant｜>"};
const Family kDeepSeek31{"deepseek_v31", "{# <｜tool▁calls▁begin｜> #}<｜Assistant｜>"};
const Family kHermes{"hermes", "{# <tool_call> #}<|im_start|>assistant\n"};

class Structured : public ::testing::TestWithParam<Family> {
 protected:
  Structured() {
    RigSetup setup;
    setup.server.chat_template = std::string(kMessages) + GetParam().ways;
    rig = std::make_unique<ServerRig>(setup);
  }
  // A model that knows none of this might reason for ever: it prefers what begins with these.
  Json body(const std::vector<std::string>& preferred) const {
    Json b = chat_body("Continue: the cat", 200);
    for (const std::string& text : preferred)
      b["logit_bias"][std::to_string(rig->tokenizer().encode(text).front())] = 1000;
    return b;
  }
  bool harmony() const { return GetParam().name == kHarmony.name; }
  std::unique_ptr<ServerRig> rig;
};

TEST_P(Structured, JsonIsTheContent) {
  const Json schema = {
      {"type", "object"},
      {"properties", {{"kind", {{"enum", {"cat", "dog"}}}}, {"age", {{"type", "integer"}, {"minimum", 0}}}}},
      {"required", {"kind", "age"}},
      {"additionalProperties", false}};
  for (const double temperature : {0.0, 1.5}) {
    Json b = body({harmony() ? "final" : "{"});
    b["temperature"] = temperature;
    b["seed"] = 5;
    b["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "pet"}, {"schema", schema}}}};
    const HttpAnswer answer = rig->post("/v1/chat/completions", b);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const Json choice = answer.json()["choices"][0];
    ASSERT_EQ(choice["finish_reason"], "stop") << choice;
    const std::string content = choice["message"]["content"];
    const Json value = Json::parse(content);
    EXPECT_TRUE(value["kind"] == "cat" || value["kind"] == "dog");
    EXPECT_TRUE(value["age"].is_number_integer());
    EXPECT_EQ(value.size(), 2u);
    b["stream"] = true;
    std::string streamed;
    for (const Json& chunk : rig->post("/v1/chat/completions", b).chunks())
      streamed += chunk["choices"][0]["delta"].value("content", "");
    EXPECT_EQ(streamed, content);
  }
}

TEST_P(Structured, AFunctionIsCalledWhereOneMustBe) {
  const auto tool = [](const char* name, const char* parameter) {
    return Json{{"type", "function"},
                {"function",
                 {{"name", name},
                  {"parameters",
                   {{"type", "object"},
                    {"properties", {{parameter, {{"enum", {"Paris", "Rome"}}}}}},
                    {"required", {parameter}}}}}}};
  };
  Json b = body(harmony() ? std::vector<std::string>{"comm"}
                          : std::vector<std::string>{"<", GetParam().name == kHermes.name ? "tool" : "｜"});
  b["tools"] = {tool("weather", "city"), tool("news", "town")};
  const auto call_of = [&](const Json& choice, bool stream) {
    b["tool_choice"] = choice;
    b["stream"] = stream;
    const HttpAnswer answer = rig->post("/v1/chat/completions", b);
    EXPECT_EQ(answer.status, 200) << answer.body;
    if (!stream) {
      const Json first = answer.json()["choices"][0];
      EXPECT_EQ(first["finish_reason"], "tool_calls") << first;
      EXPECT_TRUE(first["message"]["content"].is_null()) << first;
      return first["message"]["tool_calls"][0]["function"];
    }
    Json call;
    for (const Json& chunk : answer.chunks()) {
      const Json& delta = chunk["choices"][0]["delta"];
      if (delta.contains("tool_calls")) call = delta["tool_calls"][0]["function"];
    }
    EXPECT_EQ(answer.chunks().back()["choices"][0]["finish_reason"], "tool_calls");
    return call;
  };
  const Json any = call_of("required", false);
  EXPECT_TRUE(any["name"] == "weather" || any["name"] == "news") << any;
  EXPECT_EQ(call_of("required", true), any);
  for (const char* name : {"weather", "news"}) {
    const Json call = call_of({{"type", "function"}, {"function", {{"name", name}}}}, false);
    EXPECT_EQ(call["name"], name);
    const Json arguments = Json::parse(call["arguments"].get<std::string>());
    const std::string city = arguments[std::string(name) == "news" ? "town" : "city"];
    EXPECT_TRUE(city == "Paris" || city == "Rome");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Structured, ::testing::Values(kHarmony, kDeepSeek3, kDeepSeek31, kHermes),
                         [](const auto& info) { return info.param.name; });

TEST(StructuredErrors, AreOfTheFieldThatIsWrong) {
  Json b = chat_body("x", 4);
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const auto refused = [&](const char* param, const char* part) {
    const HttpAnswer answer = shared_rig().post("/v1/chat/completions", b);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(answer.json()["error"]["param"], param);
    EXPECT_NE(answer.body.find(part), std::string::npos) << answer.body;
  };
  b["tool_choice"] = "required";
  refused("tool_choice", "only allowed with tools");
  b["tools"] = tools;
  refused("tool_choice", "does not say how functions are called");  // the bundled model's template has no tools
  for (const Json& choice : {Json("always"), Json(5), Json::object(), Json{{"function", {{"name", 5}}}},
                             Json{{"function", "f"}}, Json{{"function", {{"name", "g"}}}}}) {
    b["tool_choice"] = choice;
    refused("tool_choice", "tool_choice");
  }
}

}  // namespace
}  // namespace ef::testing
