// What a chat model writes, taken apart while it comes: reasoning, content and tool calls, in the ways of the families
// that mark them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ef {

/// How a family marks the parts of an answer.
enum class OutputStyle : uint8_t {
  kPlain,     ///< content alone
  kHermes,    ///< <think>...</think>, <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Qwen3, Hermes, GLM)
  kDeepSeek,  ///< <think>...</think>, <｜tool▁calls▁begin｜>... (DeepSeek-V3, R1, V3.1)
  kHarmony,   ///< <|channel|>analysis<|message|>...<|end|>... (gpt-oss)
};

/// By what the source of a chat template speaks of.
OutputStyle output_style_of(std::string_view chat_template);
/// Special tokens are part of the text that ChatOutput wants.
inline bool shows_special(OutputStyle style) {
  return style == OutputStyle::kDeepSeek || style == OutputStyle::kHarmony;
}
/// Whether the prompt leaves the model inside a block of reasoning.
bool opens_reasoning(std::string_view prompt);

struct ToolCall {
  std::string name;
  std::string arguments;  ///< JSON text as the model wrote it
};
struct ChatDelta {
  std::string content, reasoning;
  std::vector<ToolCall> tool_calls;  ///< whole ones
  bool empty() const { return content.empty() && reasoning.empty() && tool_calls.empty(); }
};

class ChatOutput {
 public:
  struct Options {
    OutputStyle style = OutputStyle::kPlain;
    bool in_reasoning = false;  ///< from the first byte
    bool tools = false;         ///< tool calls are looked for; else their text is content
  };
  explicit ChatOutput(const Options& options);

  ChatDelta push(std::string_view text);
  /// The answer ended. A tool call that cannot be read is content, as it was written.
  ChatDelta finish();

 private:
  enum class Part : uint8_t { kStart, kReasoning, kContent, kTools, kTool, kHeader };
  struct Mark {
    std::string_view text;
    Part to;
  };
  std::vector<Mark> marks() const;
  void take(std::string_view text, ChatDelta& delta);
  void enter(const Mark& mark, ChatDelta& delta);
  void end_tool(ChatDelta& delta);
  void read_header();

  Options options_;
  Part part_ = Part::kStart;
  std::string held_;    ///< may be the beginning of a mark
  std::string buffer_;  ///< of a tool call, or a header
  std::string tool_name_;
  bool trim_ = false;  ///< white space at the beginning of the part is dropped
};

}  // namespace ef
