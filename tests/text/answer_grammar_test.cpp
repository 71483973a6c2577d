// Whole answers: what is asked for between a family's marks. Every text that a grammar takes must also be taken apart
// as meant. The texts follow the families' published templates.
#include "expertflow/text/answer_grammar.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "expertflow/base/errors.h"
#include "tests/text/grammar_accepts.h"

namespace ef {
namespace {

using Json = nlohmann::ordered_json;

// The same text with each mark as its special token.
std::string with_special_tokens(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "<|") == 0 || text.compare(i, 4, "<｜") == 0) out += Grammar::kSpecial;
    out += text[i];
  }
  return out;
}

ChatDelta taken_apart(const AnswerShape& shape, const std::string& text) {
  ChatOutput output({shape.style, shape.in_reasoning, true});
  ChatDelta all = output.push(text), rest = output.finish();
  all.content += rest.content, all.reasoning += rest.reasoning;
  for (ToolCall& call : rest.tool_calls) all.tool_calls.push_back(std::move(call));
  return all;
}

constexpr AnswerShape kPlain{}, kHermes{OutputStyle::kHermes}, kThinking{OutputStyle::kHermes, true},
    kHarmony{OutputStyle::kHarmony}, kDeepSeek31{OutputStyle::kDeepSeek},
    kDeepSeek3{OutputStyle::kDeepSeek, false, true}, kR1{OutputStyle::kDeepSeek, true, true};
const Json kBoolean{{"type", "boolean"}};
const std::vector<std::pair<std::string, Json>> kFunctions{
    {"f", Json::parse(R"({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})")},
    {"g", Json::object()}};

TEST(AnswerGrammar, JsonAfterThoughts) {
  const auto maybe = json_answer_grammar(&kBoolean, kHermes);
  EXPECT_TRUE(accepts(maybe, "true"));
  EXPECT_TRUE(accepts(maybe, "<think>is it < or </thin?</think>\n\ntrue"));
  EXPECT_FALSE(accepts(maybe, "I think true"));
  EXPECT_FALSE(accepts(maybe, "<think>true"));
  const auto open = json_answer_grammar(&kBoolean, kThinking);
  EXPECT_TRUE(accepts(open, "well </</think>false"));
  EXPECT_FALSE(accepts(open, "false"));
  EXPECT_FALSE(accepts(json_answer_grammar(&kBoolean, kPlain), "<think>x</think>true"));
}

TEST(AnswerGrammar, JsonOnTheFinalChannel) {
  const auto g = json_answer_grammar(&kBoolean, kHarmony);
  for (const std::string text :
       {"<|channel|>final<|message|>true",
        "<|channel|>analysis<|message|>Let me <see>.<|end|><|start|>assistant<|channel|>final<|message|>true",
        "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>analysis<|message|>More.<|end|><|start|>"
        "assistant<|channel|>final <|constrain|>json<|message|>true"}) {
    EXPECT_TRUE(accepts(g, text)) << text;
    EXPECT_TRUE(accepts(g, with_special_tokens(text))) << text;
    EXPECT_EQ(taken_apart(kHarmony, text).content, "true") << text;
  }
  for (const std::string text :
       {"true", "<|channel|>final<|message|>yes", "<|channel|>commentary<|message|>true",
        "<|channel|>analysis<|message|>true", "<|channel|>analysis<|message|>x<|end|><|channel|>final<|message|>true",
        "<|channel|>final<|message|>true<|end|>"}) {
    EXPECT_FALSE(accepts(g, text)) << text;
    EXPECT_FALSE(accepts(g, with_special_tokens(text))) << text;
  }
}

TEST(AnswerGrammar, CallsInEachFamilysWay) {
  struct Case {
    AnswerShape shape;
    std::string begin, end;  ///< around the arguments; NAME: the function
    std::string reasoning;
  };
  const std::string hermes = "<tool_call>\n{\"name\": \"NAME\", \"arguments\": ", hermes_end = "}\n</tool_call>";
  const std::string v3 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n";
  const std::string v31 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>";
  const std::string v31_end = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", v3_end = "\n```" + v31_end;
  const std::string harmony = "<|channel|>commentary to=functions.NAME";
  const std::vector<Case> cases{
      {kHermes, hermes, hermes_end, ""},
      {kThinking, "so</think>\n\n" + hermes, hermes_end, "so"},
      {kDeepSeek31, v31, v31_end, ""},
      {kDeepSeek3, v3, v3_end, ""},
      {kR1, "so</think>\n\n" + v3, v3_end, "so"},
      {kHarmony, harmony + " <|constrain|>json<|message|>", "", ""},
      {kHarmony, harmony + " json<|message|>", "", ""},
      {kHarmony, harmony + "<|message|>", "", ""},
      {kHarmony, "<|channel|>analysis<|message|>so<|end|><|start|>assistant" + harmony + "<|message|>", "", "so"}};
  for (const Case& c : cases) {
    const auto g = tool_call_grammar(kFunctions, c.shape);
    const auto written = [&](const std::string& name, const std::string& arguments) {
      std::string begin = c.begin;
      return begin.replace(begin.find("NAME"), 4, name) + arguments + c.end;
    };
    const std::string text = written("f", "{\"x\": 3}");
    EXPECT_TRUE(accepts(g, text)) << text;
    EXPECT_TRUE(accepts(g, with_special_tokens(text))) << text;
    EXPECT_FALSE(accepts(g, written("f", "{\"x\": \"3\"}"))) << text;
    EXPECT_FALSE(accepts(g, written("f", "3"))) << text;
    EXPECT_FALSE(accepts(g, written("h", "{\"x\": 3}"))) << text;
    EXPECT_EQ(accepts(g, "A call: " + text), c.shape.in_reasoning) << text;
    const ChatDelta parts = taken_apart(c.shape, text);
    ASSERT_EQ(parts.tool_calls.size(), 1u) << text;
    EXPECT_EQ(parts.tool_calls[0].name, "f");
    EXPECT_EQ(Json::parse(parts.tool_calls[0].arguments), Json::parse("{\"x\": 3}"));
    EXPECT_EQ(parts.reasoning, c.reasoning);
    EXPECT_EQ(parts.content, "");
  }
  // A function without a schema takes any object.
  EXPECT_TRUE(
      accepts(tool_call_grammar(kFunctions, kHarmony), "<|channel|>commentary to=functions.g<|message|>{\"a\": []}"));
  EXPECT_FALSE(accepts(tool_call_grammar(kFunctions, kHarmony), "<|channel|>commentary to=functions.g<|message|>[]"));
  EXPECT_THROW(tool_call_grammar(kFunctions, kPlain), RequestError);
}

TEST(AnswerGrammar, ShapesAreToldByTheTemplates) {
  const auto shape = [](const char* name, const char* prompt) {
    std::ifstream in(std::string(EF_TEST_DATA) + "/text/chat_templates/" + name);
    EXPECT_TRUE(in.good());
    return answer_shape(std::string(std::istreambuf_iterator<char>(in), {}), prompt);
  };
  EXPECT_TRUE(shape("deepseek_v3.jinja", "").fenced_calls);
  EXPECT_EQ(shape("harmony.jinja", "").style, OutputStyle::kHarmony);
  EXPECT_TRUE(shape("qwen3.jinja", "<|im_start|>assistant\n<think>\n").in_reasoning);
}

}  // namespace
}  // namespace ef
