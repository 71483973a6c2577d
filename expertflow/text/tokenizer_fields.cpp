#include "expertflow/text/tokenizer_fields.h"

#include <limits>

#include "expertflow/text/unicode.h"

namespace ef::fields {
namespace {
const nlohmann::json kNull;
constexpr size_t kShown = 60;
}  // namespace

std::string describe(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kShown) text = utf8_lossy(text.substr(0, kShown)) + "...";
  return text;
}

void wrong(const Node& node, std::string_view expected) {
  const char* colon = node.where.ends_with(':') ? "" : ":";
  fail<ModelError>("{}{} expected {}, found {}", node.where, colon, expected, describe(node.value));
}

Node member(const Node& node, const char* key) {
  if (!node.value.is_object()) wrong(node, "an object");
  const auto found = node.value.find(key);
  const bool top = node.where.ends_with(':');
  std::string where = top ? fmt::format("{} {}", node.where, key) : fmt::format("{}.{}", node.where, key);
  return {found == node.value.end() ? kNull : *found, std::move(where)};
}

Node element(const Node& node, size_t index) {
  return {node.value.at(index), fmt::format("{}[{}]", node.where, index)};
}

std::string string_of(const Node& node) {
  if (!node.value.is_string()) wrong(node, "a string");
  return node.value.get<std::string>();
}

std::string string_or(const Node& node, const char* key, std::string_view otherwise) {
  const Node found = member(node, key);
  return found.value.is_null() ? std::string(otherwise) : string_of(found);
}

std::string required_string(const Node& node, const char* key) { return string_of(member(node, key)); }

bool boolean_or(const Node& node, const char* key, bool otherwise) {
  const Node found = member(node, key);
  if (found.value.is_null()) return otherwise;
  if (!found.value.is_boolean()) wrong(found, "true or false");
  return found.value.get<bool>();
}

size_t count_or(const Node& node, const char* key, size_t otherwise) {
  const Node found = member(node, key);
  if (found.value.is_null()) return otherwise;
  if (!found.value.is_number_integer() || found.value < 0) wrong(found, "a non-negative integer");
  return found.value.get<size_t>();
}

int32_t token_id(const Node& node) {
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int32_t>::max());
  const auto& value = node.value;
  const bool fits = value.is_number_integer() && value >= 0 && value.get<uint64_t>() <= kLargest;
  if (!fits) wrong(node, "a token id");
  return value.get<int32_t>();
}

size_t array_size(const Node& node) {
  if (!node.value.is_array()) wrong(node, "an array");
  return node.value.size();
}

std::string type_of(const Node& node) { return required_string(node, "type"); }

void unknown_type(const Node& node, std::string_view kind, std::string_view known) {
  fail<ModelError>("{}: unknown {} type '{}' (known: {})", node.where, kind, type_of(node), known);
}

}  // namespace ef::fields
