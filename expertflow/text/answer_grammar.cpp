#include "expertflow/text/answer_grammar.h"

#include "expertflow/base/errors.h"
#include "expertflow/text/json_grammar.h"

namespace ef {

namespace {

using Json = nlohmann::ordered_json;
using Sequence = Grammar::Sequence;

// <think>...</think>, which the model may leave out unless the prompt has opened it.
Sequence thoughts(Grammar& g, bool is_open) {
  const Sequence rest = g.until("</think>") + g.repeat(g.literal("\n"), 0, 2);
  return is_open ? rest : g.optional(g.mark("<think>") + rest);
}

// Any number of messages on the channel for reasoning, each with the header of the next message. Prompts end with
// "<|start|>assistant".
Sequence analysis(Grammar& g) {
  const Sequence message = g.mark("<|channel|>") + g.literal("analysis") + g.mark("<|message|>") + g.until("<|end|>") +
                           g.mark("<|start|>") + g.literal("assistant");
  return g.repeat(message, 0, -1);
}

Sequence reasoning(Grammar& g, const AnswerShape& shape) {
  switch (shape.style) {
    case OutputStyle::kHermes:
    case OutputStyle::kDeepSeek:
      return thoughts(g, shape.in_reasoning);
    case OutputStyle::kHarmony:
      return analysis(g);
    default:
      return {};
  }
}

// What stands around the name and the arguments of a call.
struct CallMarks {
  Sequence begin, between, end;
};

CallMarks call_marks(Grammar& g, const AnswerShape& shape) {
  switch (shape.style) {
    case OutputStyle::kHermes:
      return {g.mark("<tool_call>") + g.literal("\n{\"name\": "), g.literal(", \"arguments\": "),
              g.literal("}\n") + g.mark("</tool_call>")};
    case OutputStyle::kDeepSeek: {
      const Sequence begin = g.mark("<｜tool▁calls▁begin｜>") + g.mark("<｜tool▁call▁begin｜>");
      const Sequence separator = g.mark("<｜tool▁sep｜>");
      const Sequence end = g.mark("<｜tool▁call▁end｜>") + g.mark("<｜tool▁calls▁end｜>");
      if (!shape.fenced_calls) return {begin, separator, end};
      return {begin + g.literal("function") + separator, g.literal("\n```json\n"), g.literal("\n```") + end};
    }
    case OutputStyle::kHarmony:
      return {
          g.mark("<|channel|>") + g.literal("commentary to=functions."),
          g.optional(g.literal(" ") + g.optional(g.mark("<|constrain|>")) + g.literal("json")) + g.mark("<|message|>"),
          {}};
    default:
      fail<RequestError>("this model's template does not say how functions are called");
  }
}

}  // namespace

AnswerShape answer_shape(std::string_view chat_template, std::string_view prompt) {
  return {output_style_of(chat_template), opens_reasoning(prompt),
          chat_template.find("```json") != std::string_view::npos};
}

std::shared_ptr<const Grammar> json_answer_grammar(const Json* schema, const AnswerShape& shape) {
  auto grammar = std::make_shared<Grammar>();
  Grammar& g = *grammar;
  Sequence content = json_part(g, schema, "schema");
  if (shape.style == OutputStyle::kHarmony)
    content = g.mark("<|channel|>") + g.literal("final") +
              g.optional(g.optional(g.literal(" ")) + g.mark("<|constrain|>") + g.literal("json")) +
              g.mark("<|message|>") + content;
  g.set_root(reasoning(g, shape) + content);
  return grammar;
}

std::shared_ptr<const Grammar> tool_call_grammar(const std::vector<std::pair<std::string, Json>>& functions,
                                                 const AnswerShape& shape) {
  auto grammar = std::make_shared<Grammar>();
  Grammar& g = *grammar;
  const CallMarks marks = call_marks(g, shape);
  std::vector<Sequence> calls;
  for (const auto& [name, parameters] : functions) {
    const Json* schema = parameters == Json::object() ? nullptr : &parameters;  // arguments are an object at any rate
    calls.push_back(g.literal(shape.style == OutputStyle::kHermes ? Json(name).dump() : name) + marks.between +
                    json_part(g, schema, "parameters of " + name));
  }
  g.set_root(reasoning(g, shape) + marks.begin + g.choice(std::move(calls)) + marks.end);
  return grammar;
}

}  // namespace ef
