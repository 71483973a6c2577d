// JSON values and JSON Schemas as grammars: what response_format asks for.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

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

/// The same as a part of a grammar; null: any object. `where` stands in messages.
Grammar::Sequence json_part(Grammar& grammar, const nlohmann::ordered_json* schema, const std::string& where);

}  // namespace ef
