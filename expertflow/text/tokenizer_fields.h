// Typed access to the fields of tokenizer.json and its neighbours; every ModelError names the file and the field.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "expertflow/base/errors.h"

namespace ef::fields {

/// An object (or value) and the place it stands at, such as "tokenizer.json: pre_tokenizer.pretokenizers[1]".
struct Node {
  const nlohmann::json& value;
  std::string where;
};

/// ModelError: "WHERE: expected EXPECTED, found WHAT".
[[noreturn]] void wrong(const Node& node, std::string_view expected);
/// Short rendering of a value for messages.
std::string describe(const nlohmann::json& value);

/// The member, or a null value if absent. The node must be an object.
Node member(const Node& node, const char* key);
Node element(const Node& node, size_t index);

std::string string_of(const Node& node);
std::string string_or(const Node& node, const char* key, std::string_view otherwise);  ///< absent or null: the default
std::string required_string(const Node& node, const char* key);
bool boolean_or(const Node& node, const char* key, bool otherwise);
size_t count_or(const Node& node, const char* key, size_t otherwise);
/// A non-negative integer that fits an int32 token id.
int32_t token_id(const Node& node);
/// The elements' number; the member must be an array.
size_t array_size(const Node& node);
/// The "type" of a component.
std::string type_of(const Node& node);
/// For a component of a kind that is not known: names it and lists those that are.
[[noreturn]] void unknown_type(const Node& node, std::string_view kind, std::string_view known);

}  // namespace ef::fields
