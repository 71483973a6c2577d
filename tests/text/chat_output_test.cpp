// Answers taken apart, whole and in pieces of every size. The texts follow the families' published templates.
#include "expertflow/text/chat_output.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace ef {
namespace {

struct Parts {
  std::string content, reasoning;
  std::vector<ToolCall> calls;
};

Parts parse(const ChatOutput::Options& options, const std::string& text, size_t piece) {
  ChatOutput output(options);
  Parts parts;
  const auto add = [&](ChatDelta&& d) {
    parts.content += d.content;
    parts.reasoning += d.reasoning;
    for (ToolCall& call : d.tool_calls) parts.calls.push_back(std::move(call));
  };
  for (size_t at = 0; at < text.size(); at += piece) add(output.push(text.substr(at, piece)));
  add(output.finish());
  return parts;
}

void expect(const ChatOutput::Options& options, const std::string& text, const Parts& expected) {
  for (const size_t piece : {text.size(), size_t(1), size_t(2), size_t(3), size_t(7), size_t(13)}) {
    const Parts found = parse(options, text, piece);
    EXPECT_EQ(found.content, expected.content) << text << " in pieces of " << piece;
    EXPECT_EQ(found.reasoning, expected.reasoning) << text << " in pieces of " << piece;
    ASSERT_EQ(found.calls.size(), expected.calls.size()) << text << " in pieces of " << piece;
    for (size_t i = 0; i < found.calls.size(); ++i) {
      EXPECT_EQ(found.calls[i].name, expected.calls[i].name);
      EXPECT_EQ(found.calls[i].arguments, expected.calls[i].arguments);
    }
  }
}

constexpr auto kHermes = OutputStyle::kHermes, kDeepSeek = OutputStyle::kDeepSeek, kHarmony = OutputStyle::kHarmony;

TEST(ChatOutput, StylesAreToldByTheTemplates) {
  const auto style = [](const char* name) {
    std::ifstream in(std::string(EF_TEST_DATA) + "/text/chat_templates/" + name);
    EXPECT_TRUE(in.good());
    return output_style_of(std::string(std::istreambuf_iterator<char>(in), {}));
  };
  EXPECT_EQ(style("qwen3.jinja"), kHermes);
  EXPECT_EQ(style("deepseek_v3.jinja"), kDeepSeek);
  EXPECT_EQ(style("harmony.jinja"), kHarmony);
  EXPECT_EQ(style("mixtral.jinja"), OutputStyle::kPlain);
}

TEST(ChatOutput, Plain) {
  expect({}, "a <think> b <tool_call>{}</tool_call>", {"a <think> b <tool_call>{}</tool_call>", "", {}});
}

TEST(ChatOutput, Qwen3Thinks) {
  expect({kHermes, false, false}, "<think>\nwell < so\n</think>\n\nThe answer.", {"The answer.", "well < so\n", {}});
  expect({kHermes, true, false}, "\nwell</think>\n\nYes.", {"Yes.", "well", {}});
  expect({kHermes, false, false}, "No thoughts, <think> is a word.", {"No thoughts, <think> is a word.", "", {}});
  expect({kHermes, false, false}, "<think>never ends", {"", "never ends", {}});
  expect({kHermes, false, false}, "<thin", {"<thin", "", {}});
}

TEST(ChatOutput, Qwen3Calls) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"x\"}}\n</tool_call>";
  expect({kHermes, false, true}, call, {"", "", {{"f", "{\"b\":1,\"a\":\"x\"}"}}});
  expect({kHermes, false, true}, "<think>hm</think>\n\nI call.\n" + call + "\n" + call,
         {"I call.\n", "hm", {{"f", "{\"b\":1,\"a\":\"x\"}"}, {"f", "{\"b\":1,\"a\":\"x\"}"}}});
  expect({kHermes, false, false}, call, {call, "", {}});  // nobody asked for tools
  expect({kHermes, false, true}, "<tool_call>{\"name\": \"f\", \"arguments\": {}}",
         {"", "", {{"f", "{}"}}});  // cut off after it
  expect({kHermes, false, true}, "<tool_call>not json</tool_call>", {"<tool_call>not json", "", {}});
}

// What nests without end is text: taking it apart, and copying it, would need as deep a stack.
TEST(ChatOutput, CallsThatNestTooDeep) {
  const std::string deep = std::string(200000, '['), arguments = "{\"a\": " + deep + std::string(200000, ']') + "}";
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": " + arguments + "}";
  expect({kHermes, false, true}, call + "</tool_call>", {call, "", {}});
}

TEST(ChatOutput, DeepSeekCalls) {
  const std::string v3 =
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
      "1}\n```<｜tool▁call▁end｜>\n"
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  expect({kDeepSeek, true, true}, "thought</think>Text." + v3,
         {"Text.", "thought", {{"f", "{\"a\": 1}"}, {"g", "{}"}}});
  const std::string v31 =
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  expect({kDeepSeek, false, true}, v31, {"", "", {{"f", "{\"a\": 1}"}}});
}

TEST(ChatOutput, HarmonyChannels) {
  expect(
      {kHarmony, false, false},
      "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>",
      {"It is 4.", "Let me see.", {}});
  expect({kHarmony, false, false}, "<|channel|>final<|message|>Hello", {"Hello", "", {}});
  expect({kHarmony, false, true},
         "<|channel|>analysis<|message|>A call.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
         "<|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
         {"", "A call.", {{"weather", "{\"city\": \"Paris\"}"}}});
  expect({kHarmony, false, true}, "<|channel|>commentary<|message|>I will look.<|end|>", {"I will look.", "", {}});
}

TEST(ChatOutput, PromptsThatOpenReasoning) {
  EXPECT_TRUE(opens_reasoning("<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(opens_reasoning("<|im_start|>assistant\n"));
}

}  // namespace
}  // namespace ef
