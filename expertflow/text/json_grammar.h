// JSON values and JSON Schemas as grammars: what response_format asks for.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "expertflow/text/grammar.h"

namespace ef {

/// Any JSON object.
std::shared_ptr<const Grammar> json_object_grammar();
/// JSON that is valid under the schema; properties come in the schema's order, and others do not come at all unless the
/// object declares none. RequestError naming a keyword that cannot be honoured: nothing is silently left out.
/// Known: type, properties, required, additionalProperties, items, prefixItems, minItems, maxItems, enum, const, anyOf,
/// oneOf (as anyOf), allOf of one, $ref within the schema, $defs, minLength, maxLength, format (date, time, date-time,
/// uuid), minimum 0 of an integer.
std::shared_ptr<const Grammar> json_schema_grammar(const nlohmann::ordered_json& schema);

/// How an answer may begin before what the grammar asks for.
struct GrammarPrefix {
  /// "<think>", "</think>": the answer may begin with a block of that kind. Empty: no.
  std::string_view open, close;
  bool is_open = false;  ///< the prompt has opened it already: the answer is inside until `close`
};
std::shared_ptr<const Grammar> json_grammar(const nlohmann::ordered_json* schema, const GrammarPrefix& prefix);
/// A call of one of these functions (name, schema of its arguments) as <tool_call> marks it.
std::shared_ptr<const Grammar> tool_call_grammar(
    const std::vector<std::pair<std::string, nlohmann::ordered_json>>& functions, const GrammarPrefix& prefix);

}  // namespace ef
