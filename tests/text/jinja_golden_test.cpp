// Every case of tests/data/text, rendered by Python's Jinja2 (tools/jinja_goldens).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "expertflow/text/chat.h"

namespace ef {
namespace {

using Json = nlohmann::ordered_json;

std::string read(const std::string& name) {
  std::ifstream in(std::string(EF_TEST_DATA) + "/text/" + name, std::ios::binary);
  EXPECT_TRUE(in) << name;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::tm time_of(const Json& fields) {
  std::tm now{};
  now.tm_year = fields[0].get<int>() - 1900;
  now.tm_mon = fields[1].get<int>() - 1;
  now.tm_mday = fields[2];
  now.tm_hour = fields[3];
  now.tm_min = fields[4];
  now.tm_sec = fields[5];
  now.tm_isdst = -1;
  std::mktime(&now);  // fills in the day of the week and of the year
  return now;
}

/// "ok: text", "raised: message" or "error".
template <class Render>
std::string outcome(Render render, std::string* message = nullptr) {
  try {
    return "ok: " + render();
  } catch (const jinja::TemplateRaised& e) {
    return std::string("raised: ") + e.what();
  } catch (const RequestError& e) {
    if (message != nullptr) *message = e.what();
    return "error";
  }
}

std::string wanted(const Json& c) {
  if (c.contains("expect")) return "ok: " + c["expect"].get<std::string>();
  return c.contains("raised") ? "raised: " + c["raised"].get<std::string>() : "error";
}

// Where we differ from Jinja2 on purpose.
const std::map<std::string, std::string> kOwnAnswer = {
    // Refused: nothing on the hub uses it.
    {"{% for x in list recursive %}{{ x }}{% endfor %}{{ 'recursive loops are refused here' }}", "error"},
    // A lone surrogate is no character; Python keeps it.
    {R"({{ "\ud83d" | length }})", "error"},
};

TEST(JinjaGolden, SmallCases) {
  const Json data = Json::parse(read("jinja_cases.json"));
  const std::tm now = time_of(data["now"]);
  ASSERT_GE(data["cases"].size(), 500u);
  for (const Json& c : data["cases"]) {
    const std::string source = c["source"];
    const auto own = kOwnAnswer.find(source);
    std::string message;
    const std::string got = outcome([&] { return jinja::Template(source).render(data["context"], now); }, &message);
    EXPECT_EQ(got, own == kOwnAnswer.end() ? wanted(c) : own->second)
        << source << "\n"
        << message << "\npython: " << c.value("error", "");
  }
}

TEST(JinjaGolden, ChatTemplates) {
  const Json data = Json::parse(read("chat_cases.json"));
  std::map<std::string, ChatTemplate> templates;
  std::set<std::string> rendered;
  for (const Json& c : data["cases"]) {
    const std::string name = c["template"];
    const ChatTemplate& chat = templates.try_emplace(name, read("chat_templates/" + name + ".jinja")).first->second;
    ASSERT_EQ(chat.error(), "");
    ChatInput input;
    input.messages = data["conversations"][c["conversation"].get<std::string>()];
    if (!c["tools"].is_null()) input.tools = data["tools"][c["tools"].get<std::string>()];
    input.add_generation_prompt = c["prompt"];
    input.extra = c["extra"];
    input.now = time_of(data["now"]);
    for (const auto& [token, text] : data["tokens"][name].items()) input.special_tokens[token] = text;
    std::string message;
    EXPECT_EQ(outcome([&] { return chat.render(input); }, &message), wanted(c)) << c.dump() << "\n" << message;
    if (c.contains("expect")) rendered.insert(name);
  }
  EXPECT_EQ(rendered.size(), 7u);
}

}  // namespace
}  // namespace ef
