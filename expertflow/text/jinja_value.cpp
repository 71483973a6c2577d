#include "expertflow/text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "expertflow/base/errors.h"
#include "expertflow/text/jinja_unicode.h"

namespace ef::jinja {
namespace {

constexpr double kExactIntegers = 9007199254740992.0;  // 2^53

void check_depth(int depth) {
  EF_CHECK(depth <= kMaxValueDepth, RequestError, "chat template: values are nested more than {} deep", kMaxValueDepth);
}

void check_weight(int64_t weight) {
  EF_CHECK(weight <= kMaxValueWeight, RequestError, "chat template: a value is larger than {} bytes", kMaxValueWeight);
}

void append_quoted(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (size_t i = 0; i < text.size();) {
    const int32_t c = code_point(text, i);
    const size_t n = char_length(text, i);
    if (c == quote || c == '\\') {
      out += '\\';
      out += char(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += text.substr(i, n);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", c);
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += fmt::format("\\U{:08x}", c);
    }
    i += n;
  }
  out += quote;
}

void append_json_string(std::string& out, std::string_view text, bool ascii) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const size_t n = char_length(text, i);
    const int32_t c = code_point(text, i);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) {
          out += c == 0x7F ? std::string(1, char(c)) : fmt::format("\\u{:04x}", c);
        } else if (ascii && c >= 0x10000) {
          out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
        } else {
          out += text.substr(i, n);
        }
    }
    i += n;
  }
  out += '"';
}

void append_json_float(std::string& out, double d) {
  if (std::isnan(d)) {
    out += "NaN";
  } else if (std::isinf(d)) {
    out += d < 0 ? "-Infinity" : "Infinity";
  } else {
    out += float_repr(d);
  }
}

std::string json_key(const Value& key) {
  switch (key.type()) {
    case Type::kString:
      return key.as_string();
    case Type::kNone:
      return "null";
    case Type::kBool:
      return key.as_bool() ? "true" : "false";
    case Type::kInt:
      return std::to_string(key.as_int());
    case Type::kFloat:
      return float_repr(key.as_double());
    default:
      fail<RequestError>("chat template: tojson: a {} cannot be a key", key.type_name());
  }
}

void append_line(std::string& out, const JsonStyle& style, int level) {
  if (style.indent < 0) return;
  out += '\n';
  for (int i = 0; i < level; ++i) out += style.indent_text;
}

void append_json_list(std::string& out, const List& list, const JsonStyle& style, int level) {
  if (list.kind == ListKind::kGenerator || list.kind == ListKind::kView || list.kind == ListKind::kRange) {
    fail<RequestError>("chat template: tojson: a {} has no JSON form",
                       Value(std::make_shared<const List>(list)).type_name());
  }
  out += '[';
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += style.item_separator;
    append_line(out, style, level + 1);
    append_json(out, list.items[i], style, level + 1);
  }
  if (!list.items.empty()) append_line(out, style, level);
  out += ']';
}

void append_json_dict(std::string& out, const Dict& dict, const JsonStyle& style, int level) {
  auto items = dict.items();
  if (style.sort_keys) {
    std::stable_sort(items.begin(), items.end(), [](auto& a, auto& b) { return compare(a.first, b.first) < 0; });
  }
  out += '{';
  bool first = true;
  for (const auto& [key, value] : items) {
    if (!first) out += style.item_separator;
    first = false;
    append_line(out, style, level + 1);
    append_json_string(out, json_key(key), style.ascii);
    out += style.key_separator;
    append_json(out, value, style, level + 1);
  }
  if (!items.empty()) append_line(out, style, level);
  out += '}';
}

void append_items(std::string& out, const std::vector<Value>& items, int depth) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(out, items[i], depth + 1);
  }
}

void append_list_repr(std::string& out, const List& list, int depth) {
  switch (list.kind) {
    case ListKind::kGenerator:
      out += "<generator object>";
      return;
    case ListKind::kRange:
      out += list.print_name;
      return;
    case ListKind::kView:
      out += list.print_name + "([";
      append_items(out, list.items, depth);
      out += "])";
      return;
    case ListKind::kList:
      out += '[';
      append_items(out, list.items, depth);
      out += ']';
      return;
    case ListKind::kTuple:
    case ListKind::kGroup:
      out += '(';
      append_items(out, list.items, depth);
      out += list.items.size() == 1 ? ",)" : ")";
      return;
  }
}

bool sequences_equal(const List& a, const List& b) {
  const auto family = [](ListKind k) { return k == ListKind::kGroup ? ListKind::kTuple : k; };
  return family(a.kind) == family(b.kind) &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equal);
}

bool dicts_equal(const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items()) {
    const Value* other = b.find(key);
    if (other == nullptr || !equal(value, *other)) return false;
  }
  return true;
}

template <class T>
int sign_of(const T& a, const T& b) {
  return a < b ? -1 : (b < a ? 1 : 0);
}

}  // namespace

Value Object::call(Runtime&, Args&) { fail<RequestError>("chat template: '{}' object is not callable", type_name()); }

Value Value::undefined(std::string why) {
  Value v;
  v.data_ = Undefined{std::make_shared<const std::string>(std::move(why))};
  return v;
}

bool Value::truthy() const {
  switch (type()) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
      return as_bool();
    case Type::kInt:
      return as_int() != 0;
    case Type::kFloat:
      return as_double() != 0.0;
    case Type::kString:
      return !as_string().empty();
    case Type::kList:
      return as_list().kind == ListKind::kGenerator || !as_list().items.empty();
    case Type::kDict:
      return as_dict().size() != 0;
    case Type::kObject:
      return true;
  }
  return false;
}

std::string Value::type_name() const {
  switch (type()) {
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return "str";
    case Type::kDict:
      return "dict";
    case Type::kObject:
      return as_object().type_name();
    case Type::kList:
      break;
  }
  switch (as_list().kind) {
    case ListKind::kTuple:
    case ListKind::kGroup:
      return "tuple";
    case ListKind::kGenerator:
      return "generator";
    case ListKind::kView:
      return as_list().print_name;
    case ListKind::kRange:
      return "range";
    case ListKind::kList:
      break;
  }
  return "list";
}

std::string Value::undefined_why() const {
  const auto& why = std::get<Undefined>(data_).why;
  return why ? *why : "a value is undefined";
}

int64_t Value::weight() const {
  switch (type()) {
    case Type::kString:
      return 1 + int64_t(as_string().size());
    case Type::kList:
      return as_list().weight;
    case Type::kDict:
      return as_dict().weight();
    default:
      return 1;
  }
}

int Value::depth() const {
  switch (type()) {
    case Type::kList:
      return as_list().depth;
    case Type::kDict:
      return as_dict().depth();
    case Type::kObject:
      return as_object().depth();
    default:
      return 0;
  }
}

Value make_list(std::vector<Value> items, ListKind kind, std::string print_name) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) {
    list->depth = std::max(list->depth, 1 + item.depth());
    list->weight += item.weight();
    check_weight(list->weight);
  }
  check_depth(list->depth);
  list->items = std::move(items);
  list->kind = kind;
  list->print_name = std::move(print_name);
  return Value(std::shared_ptr<const List>(std::move(list)));
}

bool append_key(std::string& out, const Value& v) {
  switch (v.type()) {
    case Type::kNone:
      out += "N;";
      return true;
    case Type::kBool:
    case Type::kInt:
      out += fmt::format("i{};", v.as_int());
      return true;
    case Type::kFloat: {
      const double d = v.as_double();
      if (std::abs(d) < kExactIntegers && d == std::floor(d)) {
        out += fmt::format("i{};", int64_t(d));
      } else {
        out += fmt::format("f{};", d);
      }
      return true;
    }
    case Type::kString:
      out += fmt::format("s{}:{}", v.as_string().size(), v.as_string());
      return true;
    case Type::kList:
      if (v.as_list().kind != ListKind::kTuple && v.as_list().kind != ListKind::kGroup) return false;
      out += '(';
      for (const Value& item : v.as_list().items) {
        if (!append_key(out, item)) return false;
      }
      out += ')';
      return true;
    case Type::kObject:
      out += fmt::format("o{};", static_cast<const void*>(&v.as_object()));
      return true;
    case Type::kUndefined:
      out += "U;";
      return true;
    case Type::kDict:
      return false;
  }
  return false;
}

bool Dict::set(const Value& key, Value value) {
  std::string text;
  if (!append_key(text, key)) return false;
  const int depth = 1 + std::max(key.depth(), value.depth());
  check_depth(depth);
  depth_ = std::max(depth_, depth);
  weight_ += key.weight() + value.weight();
  check_weight(weight_);
  const auto [it, added] = index_.emplace(std::move(text), items_.size());
  if (added) {
    items_.emplace_back(key, std::move(value));
  } else {
    items_[it->second].second = std::move(value);
  }
  return true;
}

const Value* Dict::find(const Value& key) const {
  std::string text;
  if (!append_key(text, key)) return nullptr;
  const auto it = index_.find(text);
  return it == index_.end() ? nullptr : &items_[it->second].second;
}

const Value* Dict::find(std::string_view key) const {
  const auto it = index_.find(fmt::format("s{}:{}", key.size(), key));
  return it == index_.end() ? nullptr : &items_[it->second].second;
}

Value from_json(const nlohmann::ordered_json& json, int depth) {
  check_depth(depth);
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned: {
      const uint64_t u = json.get<uint64_t>();
      return u <= uint64_t(INT64_MAX) ? Value(int64_t(u)) : Value(double(u));
    }
    case nlohmann::json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::json::value_t::string:
      return Value(json.get<std::string>());
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(from_json(item, depth + 1));
      return make_list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, value] : json.items()) dict->set(Value(std::string(key)), from_json(value, depth + 1));
      return Value(std::shared_ptr<const Dict>(std::move(dict)));
    }
    default:
      return Value::none();
  }
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_double() == b.as_double();
  }
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kString:
      return a.as_string() == b.as_string();
    case Type::kList:
      return sequences_equal(a.as_list(), b.as_list());
    case Type::kDict:
      return dicts_equal(a.as_dict(), b.as_dict());
    case Type::kObject:
      return a.object_ptr() == b.object_ptr();
    default:
      return true;  // undefined, none
  }
}

int compare(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return sign_of(a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return sign_of(a.as_double(), b.as_double());
  if (a.is(Type::kString) && b.is(Type::kString)) return sign_of(a.as_string(), b.as_string());
  if (a.is(Type::kList) && b.is(Type::kList) && a.type_name() == b.type_name()) {
    const auto& x = a.as_list().items;
    const auto& y = b.as_list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i])) return compare(x[i], y[i]);
    }
    return sign_of(x.size(), y.size());
  }
  if (a.is(Type::kUndefined)) fail<RequestError>("chat template: {}", a.undefined_why());
  if (b.is(Type::kUndefined)) fail<RequestError>("chat template: {}", b.undefined_why());
  fail<RequestError>("chat template: '<' not supported between instances of '{}' and '{}'", a.type_name(),
                     b.type_name());
}

std::string float_repr(double d) {
  std::string text = fmt::format("{}", d);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string to_string(const Value& v) {
  if (v.is(Type::kString)) return v.as_string();
  if (v.is(Type::kUndefined)) return {};
  std::string out;
  append_repr(out, v);
  return out;
}

void append_repr(std::string& out, const Value& v, int depth) {
  check_depth(depth);
  switch (v.type()) {
    case Type::kUndefined:
      out += "Undefined";
      break;
    case Type::kNone:
      out += "None";
      break;
    case Type::kBool:
      out += v.as_bool() ? "True" : "False";
      break;
    case Type::kInt:
      out += std::to_string(v.as_int());
      break;
    case Type::kFloat:
      out += float_repr(v.as_double());
      break;
    case Type::kString:
      append_quoted(out, v.as_string());
      break;
    case Type::kList:
      append_list_repr(out, v.as_list(), depth);
      break;
    case Type::kDict: {
      out += '{';
      bool first = true;
      for (const auto& [key, value] : v.as_dict().items()) {
        if (!first) out += ", ";
        first = false;
        append_repr(out, key, depth + 1);
        out += ": ";
        append_repr(out, value, depth + 1);
      }
      out += '}';
      break;
    }
    case Type::kObject:
      out += "<" + v.as_object().type_name() + ">";
      break;
  }
}

void append_json(std::string& out, const Value& v, const JsonStyle& style, int level) {
  check_depth(level);
  switch (v.type()) {
    case Type::kNone:
      out += "null";
      break;
    case Type::kBool:
      out += v.as_bool() ? "true" : "false";
      break;
    case Type::kInt:
      out += std::to_string(v.as_int());
      break;
    case Type::kFloat:
      append_json_float(out, v.as_double());
      break;
    case Type::kString:
      append_json_string(out, v.as_string(), style.ascii);
      break;
    case Type::kList:
      append_json_list(out, v.as_list(), style, level);
      break;
    case Type::kDict:
      append_json_dict(out, v.as_dict(), style, level);
      break;
    case Type::kUndefined:
    case Type::kObject:
      fail<RequestError>("chat template: tojson: Object of type {} is not JSON serializable", v.type_name());
  }
}

}  // namespace ef::jinja
