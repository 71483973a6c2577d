#include "expertflow/text/chat_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "expertflow/base/trim.h"
#include "expertflow/text/bounded_json.h"

namespace ef {

namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>", kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>", kCallStop = "<｜tool▁call▁end｜>";
constexpr std::string_view kCallSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kChannel = "<|channel|>", kMessage = "<|message|>", kStart = "<|start|>";
constexpr std::string_view kEnd = "<|end|>", kReturn = "<|return|>", kCalled = "<|call|>";

bool holds(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool is_object(std::string_view text) { return parse_bounded_json(text).is_object(); }

// {"name": ..., "arguments": {...}}: arguments in the model's order.
std::optional<ToolCall> hermes_call(std::string_view text) {
  const auto json = parse_bounded_json(text);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
  const auto arguments = json.value("arguments", nlohmann::ordered_json::object());
  return ToolCall{json["name"].get<std::string>(),
                  arguments.is_string() ? arguments.get<std::string>() : arguments.dump()};
}

// "function<sep>NAME\n```json\n{...}\n```" (V3, R1) or "NAME<sep>{...}" (V3.1).
std::optional<ToolCall> deepseek_call(std::string_view text) {
  const size_t at = text.find(kCallSeparator);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view first = trimmed(text.substr(0, at)), rest = text.substr(at + kCallSeparator.size());
  const size_t fence = rest.find("```json");
  if (first != "function" || fence == std::string_view::npos) {
    if (!is_object(rest)) return std::nullopt;
    return ToolCall{std::string(first), std::string(trimmed(rest))};
  }
  std::string_view body = rest.substr(fence + std::string_view("```json").size());
  if (const size_t end = body.rfind("```"); end != std::string_view::npos) body = body.substr(0, end);
  if (!is_object(body)) return std::nullopt;
  return ToolCall{std::string(trimmed(rest.substr(0, fence))), std::string(trimmed(body))};
}

}  // namespace

OutputStyle output_style_of(std::string_view source) {
  if (holds(source, kChannel)) return OutputStyle::kHarmony;
  if (holds(source, kCallsBegin)) return OutputStyle::kDeepSeek;
  if (holds(source, kCall) || holds(source, kThinkEnd)) return OutputStyle::kHermes;
  return OutputStyle::kPlain;
}

bool opens_reasoning(std::string_view prompt) { return trimmed(prompt).ends_with(kThink); }

ChatOutput::ChatOutput(const Options& options) : options_(options) {
  if (options_.style == OutputStyle::kHarmony)
    part_ = Part::kHeader;
  else if (options_.style == OutputStyle::kPlain)
    part_ = Part::kContent;
  else if (options_.in_reasoning)
    part_ = Part::kReasoning, trim_ = true;
}

// What may end the present part.
std::vector<ChatOutput::Mark> ChatOutput::marks() const {
  const bool harmony = options_.style == OutputStyle::kHarmony, deepseek = options_.style == OutputStyle::kDeepSeek;
  if (options_.style == OutputStyle::kPlain) return {};
  if (harmony) {
    if (part_ == Part::kHeader) return {{kMessage, Part::kContent}};
    return {{kEnd, Part::kHeader}, {kReturn, Part::kHeader}, {kCalled, Part::kHeader}, {kStart, Part::kHeader}};
  }
  switch (part_) {
    case Part::kReasoning:
      return {{kThinkEnd, Part::kContent}};
    case Part::kTools:
      return {{kCallBegin, Part::kTool}, {kCallsEnd, Part::kContent}};
    case Part::kTool:
      return {{deepseek ? kCallStop : kCallEnd, deepseek ? Part::kTools : Part::kContent}};
    default:
      break;
  }
  std::vector<Mark> marks;
  if (part_ == Part::kStart) marks.push_back({kThink, Part::kReasoning});
  if (options_.tools) marks.push_back(deepseek ? Mark{kCallsBegin, Part::kTools} : Mark{kCall, Part::kTool});
  return marks;
}

void ChatOutput::take(std::string_view text, ChatDelta& delta) {
  if (text.empty()) return;
  if (part_ == Part::kTool || part_ == Part::kHeader) {
    buffer_ += text;
    return;
  }
  if (part_ == Part::kTools) return;  // between calls
  if (trim_ || part_ == Part::kStart) {
    const size_t begin = text.find_first_not_of("\r\n");
    if (trim_ && begin == std::string_view::npos) return;
    if (trim_) text = text.substr(begin);
    trim_ = false;
    // Reasoning begins an answer or does not come at all.
    if (part_ == Part::kStart && trimmed(text).empty()) {
      delta.content += text;
      return;
    }
    if (part_ == Part::kStart) part_ = Part::kContent;
  }
  (part_ == Part::kReasoning ? delta.reasoning : delta.content) += text;
}

void ChatOutput::end_tool(ChatDelta& delta) {
  const bool deepseek = options_.style == OutputStyle::kDeepSeek;
  std::optional<ToolCall> call;
  if (options_.style == OutputStyle::kHarmony) {
    if (is_object(buffer_)) call = ToolCall{tool_name_, std::string(trimmed(buffer_))};
  } else {
    call = deepseek ? deepseek_call(buffer_) : hermes_call(buffer_);
  }
  if (call)
    delta.tool_calls.push_back(std::move(*call));
  else if (options_.style == OutputStyle::kHarmony)
    delta.content += buffer_;
  else
    delta.content += std::string(deepseek ? kCallBegin : kCall) + buffer_;
  buffer_.clear();
}

// "<|channel|>NAME to=functions.TOOL <|constrain|>json" (the recipient may come before the channel).
void ChatOutput::read_header() {
  const auto word_after = [&](std::string_view mark) -> std::string {
    const size_t at = buffer_.find(mark);
    if (at == std::string::npos) return "";
    const size_t begin = at + mark.size();
    return buffer_.substr(begin, std::min(buffer_.find_first_of(" <\n", begin), buffer_.size()) - begin);
  };
  const std::string channel = word_after(kChannel), recipient = word_after("to=");
  buffer_.clear();
  tool_name_.clear();
  part_ = channel == "analysis" ? Part::kReasoning : Part::kContent;
  if (recipient.empty() || !options_.tools) return;
  constexpr std::string_view kFunctions = "functions.";
  tool_name_ = recipient.starts_with(kFunctions) ? recipient.substr(kFunctions.size()) : recipient;
  part_ = Part::kTool;
}

void ChatOutput::enter(const Mark& mark, ChatDelta& delta) {
  if (part_ == Part::kTool) end_tool(delta);
  if (part_ == Part::kHeader) {
    read_header();
    return;
  }
  trim_ = mark.to == Part::kReasoning || part_ == Part::kReasoning || part_ == Part::kTool;
  part_ = mark.to;
}

ChatDelta ChatOutput::push(std::string_view text) {
  ChatDelta delta;
  held_ += text;
  for (;;) {
    const std::vector<Mark> all = marks();
    size_t first = std::string::npos;
    const Mark* found = nullptr;
    for (const Mark& mark : all)
      if (const size_t at = held_.find(mark.text); at < first) first = at, found = &mark;
    if (!found) break;
    // Text before a mark may end the start of an answer, where other marks hold.
    const Part before = part_;
    take(std::string_view(held_).substr(0, first), delta);
    held_.erase(0, first);
    if (part_ != before) continue;
    held_.erase(0, found->text.size());
    enter(*found, delta);
  }
  // What may become a mark waits.
  size_t keep = 0;
  for (const Mark& mark : marks())
    for (size_t n = std::min(mark.text.size() - 1, held_.size()); n > keep; --n)
      if (std::string_view(held_).ends_with(mark.text.substr(0, n))) keep = n;
  take(std::string_view(held_).substr(0, held_.size() - keep), delta);
  held_.erase(0, held_.size() - keep);
  return delta;
}

ChatDelta ChatOutput::finish() {
  ChatDelta delta;
  take(held_, delta);
  held_.clear();
  if (part_ == Part::kTool) end_tool(delta);
  return delta;
}

}  // namespace ef
