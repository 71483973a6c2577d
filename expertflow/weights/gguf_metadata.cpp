// Typed access to GGUF metadata.
#include <limits>

#include "expertflow/base/errors.h"
#include "expertflow/weights/checked.h"
#include "expertflow/weights/gguf.h"

namespace ef {

std::string_view gguf_type_name(GgufValue::Type type) {
  static constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                "bool", "string", "array", "u64", "i64", "f64"};
  return size_t(type) < std::size(kNames) ? kNames[size_t(type)] : "unknown";
}

namespace {

std::string found(const GgufValue& value) {
  if (value.type != GgufValue::Type::kArray) return std::string(gguf_type_name(value.type));
  return fmt::format("array of {}", gguf_type_name(value.element));
}

const GgufValue& get(const GgufMetadata& metadata, std::string_view key, std::string_view expected) {
  const GgufValue* value = metadata.find(key);
  EF_CHECK(value != nullptr, ModelError, "{}: metadata key {}: expected {}, found no such key", metadata.file,
           printable(key), expected);
  return *value;
}

[[noreturn]] void wrong_type(const GgufMetadata& metadata, std::string_view key, std::string_view expected,
                             const GgufValue& value) {
  fail<ModelError>("{}: metadata key {}: expected {}, found {}", metadata.file, printable(key), expected, found(value));
}

/// The alternative T of the key's value.
template <class T>
const T& get_as(const GgufMetadata& metadata, std::string_view key, std::string_view expected) {
  const GgufValue& value = get(metadata, key, expected);
  const T* typed = std::get_if<T>(&value.value);
  if (typed == nullptr) wrong_type(metadata, key, expected, value);
  return *typed;
}

}  // namespace

bool GgufMetadata::contains(std::string_view key) const { return values.find(key) != values.end(); }

const GgufValue* GgufMetadata::find(std::string_view key) const {
  auto it = values.find(key);
  return it == values.end() ? nullptr : &it->second;
}

std::string GgufMetadata::str(std::string_view key) const { return get_as<std::string>(*this, key, "a string"); }

int64_t GgufMetadata::integer(std::string_view key) const {
  constexpr std::string_view kExpected = "an integer";
  const GgufValue& value = get(*this, key, kExpected);
  if (const auto* i = std::get_if<int64_t>(&value.value)) return *i;
  const auto* u = std::get_if<uint64_t>(&value.value);
  if (u == nullptr) wrong_type(*this, key, kExpected, value);
  EF_CHECK(*u <= uint64_t(std::numeric_limits<int64_t>::max()), ModelError,
           "{}: metadata key {}: expected an integer below 2^63, found {}", file, printable(key), *u);
  return int64_t(*u);
}

double GgufMetadata::number(std::string_view key) const {
  constexpr std::string_view kExpected = "a number";
  const GgufValue& value = get(*this, key, kExpected);
  if (const auto* d = std::get_if<double>(&value.value)) return *d;
  if (const auto* i = std::get_if<int64_t>(&value.value)) return double(*i);
  if (const auto* u = std::get_if<uint64_t>(&value.value)) return double(*u);
  wrong_type(*this, key, kExpected, value);
}

bool GgufMetadata::boolean(std::string_view key) const { return get_as<bool>(*this, key, "a bool"); }

std::string GgufMetadata::str_or(std::string_view key, std::string_view otherwise) const {
  return contains(key) ? str(key) : std::string(otherwise);
}
int64_t GgufMetadata::integer_or(std::string_view key, int64_t otherwise) const {
  return contains(key) ? integer(key) : otherwise;
}
double GgufMetadata::number_or(std::string_view key, double otherwise) const {
  return contains(key) ? number(key) : otherwise;
}
bool GgufMetadata::boolean_or(std::string_view key, bool otherwise) const {
  return contains(key) ? boolean(key) : otherwise;
}

std::vector<std::string> GgufMetadata::strings(std::string_view key) const {
  return get_as<std::vector<std::string>>(*this, key, "an array of strings");
}

std::vector<int64_t> GgufMetadata::integers(std::string_view key) const {
  return get_as<std::vector<int64_t>>(*this, key, "an array of integers");
}

std::vector<double> GgufMetadata::numbers(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of numbers";
  const GgufValue& value = get(*this, key, kExpected);
  if (const auto* d = std::get_if<std::vector<double>>(&value.value)) return *d;
  const auto* i = std::get_if<std::vector<int64_t>>(&value.value);
  if (i == nullptr || value.element == GgufValue::Type::kBool) wrong_type(*this, key, kExpected, value);
  return std::vector<double>(i->begin(), i->end());
}

}  // namespace ef
