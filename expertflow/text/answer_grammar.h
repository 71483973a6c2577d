// Grammars of whole answers: what is asked for (JSON, a tool call) between the marks of a model family, after reasoning
// where the model reasons.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "expertflow/text/chat_output.h"
#include "expertflow/text/grammar.h"

namespace ef {

/// How a template's model writes its answers.
struct AnswerShape {
  OutputStyle style = OutputStyle::kPlain;
  bool in_reasoning = false;  ///< the prompt leaves the model inside a block of reasoning
  bool fenced_calls = false;  ///< DeepSeek-V3 and R1 put arguments into a ```json block, V3.1 does not
};
AnswerShape answer_shape(std::string_view chat_template, std::string_view prompt);

/// Content that is JSON, valid under the schema; null: any object. RequestError as json_schema_grammar().
std::shared_ptr<const Grammar> json_answer_grammar(const nlohmann::ordered_json* schema, const AnswerShape& shape);

/// One call of one of these functions (name, schema of its arguments). RequestError where the family has no calls.
std::shared_ptr<const Grammar> tool_call_grammar(
    const std::vector<std::pair<std::string, nlohmann::ordered_json>>& functions, const AnswerShape& shape);

}  // namespace ef
