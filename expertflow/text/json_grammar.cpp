#include "expertflow/text/json_grammar.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "expertflow/base/errors.h"

namespace ef {

namespace {

using Json = nlohmann::ordered_json;
using Sequence = Grammar::Sequence;
using ByteSet = Grammar::ByteSet;

ByteSet range(int from, int to) {
  ByteSet set;
  for (int b = from; b <= to; ++b) set.set(size_t(b));
  return set;
}
ByteSet any_of(std::string_view text) {
  ByteSet set;
  for (const char c : text) set.set(uint8_t(c));
  return set;
}

constexpr size_t kMostOptional = 80;  // in a row: each may come next, in three ways; the matcher keeps 256 open
constexpr std::array kAnnotations = {"title",    "description", "default",  "examples",  "$schema", "$id",
                                     "$comment", "deprecated",  "readOnly", "writeOnly", "$defs",   "definitions"};
constexpr int kMostDepth = 64;
constexpr int64_t kMostRepeats = 4096;

class Builder {
 public:
  Builder(Grammar& grammar, const Json* root) : g_(grammar), root_(root) {
    digit_ = g_.bytes(range('0', '9'));
    // Few spaces, so that a model that likes them comes to an end.
    space_ = g_.choice({{}, g_.literal(" "), g_.literal("\n") + g_.repeat(g_.bytes(any_of(" \t")), 0, 20)});
    const auto tail = g_.bytes(range(0x80, 0xbf));
    char_ =
        g_.choice({g_.bytes(range(0x20, 0x7f) & ~any_of("\"\\\x7f")), g_.literal("\\") + g_.bytes(any_of("\"\\/bfnrt")),
                   g_.literal("\\u") + g_.repeat(g_.bytes(range('0', '9') | range('a', 'f') | range('A', 'F')), 4, 4),
                   g_.bytes(range(0xc2, 0xdf)) + tail, g_.bytes(range(0xe0, 0xe0)) + g_.bytes(range(0xa0, 0xbf)) + tail,
                   g_.bytes(range(0xe1, 0xec) | range(0xee, 0xef)) + tail + tail,
                   g_.bytes(range(0xed, 0xed)) + g_.bytes(range(0x80, 0x9f)) + tail,
                   g_.bytes(range(0xf0, 0xf0)) + g_.bytes(range(0x90, 0xbf)) + tail + tail,
                   g_.bytes(range(0xf1, 0xf3)) + tail + tail + tail,
                   g_.bytes(range(0xf4, 0xf4)) + g_.bytes(range(0x80, 0x8f)) + tail + tail});
    string_ = g_.choice({quoted(g_.repeat(char_, 0, -1))});
    // Bounded, so that no number goes on for ever.
    natural_ = g_.choice({g_.literal("0"), g_.bytes(range('1', '9')) + g_.repeat(digit_, 0, 15)});
    integer_ = g_.choice({g_.optional(g_.literal("-")) + natural_});
    number_ = g_.choice(
        {integer_ + g_.optional(g_.literal(".") + g_.repeat(digit_, 1, 16)) +
         g_.optional(g_.bytes(any_of("eE")) + g_.optional(g_.bytes(any_of("+-"))) + g_.repeat(digit_, 1, 3))});
    boolean_ = g_.choice({g_.literal("true"), g_.literal("false")});
    value_ = g_.declare();
    object_ = g_.choice({list("{", "}", string_ + colon() + Grammar::reference(value_), 0, -1)});
    array_ = g_.choice({list("[", "]", Grammar::reference(value_), 0, -1)});
    g_.define(value_, {object_, array_, string_, number_, boolean_, g_.literal("null")});
  }

  Sequence object() const { return object_; }
  Sequence space() const { return space_; }

  Sequence schema(const Json& s, const std::string& where, int depth = 0) {
    EF_CHECK(depth <= kMostDepth, RequestError, "{}: schemas nest more than {} deep", where, kMostDepth);
    if (s.is_boolean() && s.get<bool>()) return Grammar::reference(value_);
    EF_CHECK(s.is_object(), RequestError, "{}: expected a schema, found {}", where, s.type_name());
    if (s.contains("$ref")) return refer(s, where);
    if (s.contains("enum") || s.contains("const")) return constants(s, where);
    EF_CHECK(!s.contains("allOf") || s["allOf"].size() == 1, RequestError, "{}.allOf: expected a list of one schema",
             where);
    for (const char* key : {"anyOf", "oneOf", "allOf"})
      if (s.contains(key)) return any(s, key, where, depth);
    if (!s.contains("type")) return untyped(s, where, depth);
    const Json& type = s["type"];
    if (type.is_string()) return typed(s, type.get<std::string>(), where, depth);
    EF_CHECK(type.is_array() && !type.empty(), RequestError, "{}.type: expected a type or a list of them", where);
    std::vector<Sequence> alternatives;
    for (const Json& one : type) {
      EF_CHECK(one.is_string(), RequestError, "{}.type: expected names of types", where);
      Json single = s;
      // What speaks of another type has no effect on this one.
      static const std::map<std::string, std::vector<const char*>> kOf{
          {"object", {"properties", "required", "additionalProperties"}},
          {"array", {"items", "prefixItems", "minItems", "maxItems"}},
          {"string", {"minLength", "maxLength", "format"}},
          {"integer", {"minimum"}}};
      for (const auto& [name, keys] : kOf)
        if (name != one.get<std::string>() && !(name == "integer" && one == "number"))
          for (const char* key : keys) single.erase(key);
      alternatives.push_back(typed(single, one.get<std::string>(), where, depth));
    }
    return g_.choice(std::move(alternatives));
  }

 private:
  Sequence quoted(const Sequence& text) { return g_.literal("\"") + text + g_.literal("\""); }
  Sequence colon() { return g_.literal(":") + space_; }
  Sequence comma() { return g_.literal(",") + space_; }

  Sequence list(std::string_view open, std::string_view close, const Sequence& item, int64_t min, int64_t max) {
    Sequence items;
    if (max != 0) items = item + g_.repeat(comma() + item, std::max<int64_t>(0, min - 1), max < 0 ? -1 : max - 1);
    if (min == 0 && max != 0) items = g_.optional(items);
    return g_.literal(open) + space_ + items + space_ + g_.literal(close);
  }

  static void known(const Json& s, const std::string& where, std::initializer_list<const char*> keys) {
    for (const auto& [key, value] : s.items()) {
      const auto is = [&](const char* name) { return key == name; };
      const bool fine =
          std::any_of(keys.begin(), keys.end(), is) || std::any_of(kAnnotations.begin(), kAnnotations.end(), is);
      EF_CHECK(fine, RequestError, "{}: the keyword \"{}\" is not supported here", where, key);
    }
  }

  static int64_t count(const Json& s, const char* key, int64_t otherwise, const std::string& where) {
    if (!s.contains(key)) return otherwise;
    const Json& value = s[key];
    const bool fine = value.is_number_integer() && value.get<int64_t>() >= 0 && value.get<int64_t>() <= kMostRepeats;
    EF_CHECK(fine, RequestError, "{}.{}: expected 0 to {}, found {}", where, key, kMostRepeats, value.dump());
    return value.get<int64_t>();
  }

  Sequence refer(const Json& s, const std::string& where) {
    EF_CHECK(s["$ref"].is_string(), RequestError, "{}.$ref: expected a string", where);
    known(s, where, {"$ref"});
    const std::string target = s["$ref"].get<std::string>();
    EF_CHECK(target.starts_with("#"), RequestError, "{}.$ref: expected a place in this schema (#/...), found \"{}\"",
             where, target);
    if (const auto it = references_.find(target); it != references_.end()) return Grammar::reference(it->second);
    const Json* at = nullptr;
    try {
      at = &root_->at(Json::json_pointer(target.substr(1)));
    } catch (const Json::exception&) {
      fail<RequestError>("{}.$ref: there is no \"{}\" in the schema", where, target);
    }
    EF_CHECK(!(at->is_object() && at->contains("$ref")), RequestError, "{}.$ref: \"{}\" is a reference itself", where,
             target);
    const uint32_t rule = g_.declare();
    references_[target] = rule;
    g_.define(rule, {schema(*at, target, 1)});
    return Grammar::reference(rule);
  }

  static bool is_of(const Json& value, const Json& type) {
    if (type.is_array())
      return std::any_of(type.begin(), type.end(), [&](const Json& one) { return is_of(value, one); });
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    const bool whole = value.is_number_integer() ||
                       (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
    return (name == "string" && value.is_string()) || (name == "number" && value.is_number()) ||
           (name == "integer" && whole) || (name == "boolean" && value.is_boolean()) ||
           (name == "null" && value.is_null()) || (name == "object" && value.is_object()) ||
           (name == "array" && value.is_array());
  }

  // Values that "enum", "const" and "type" all allow.
  Sequence constants(const Json& s, const std::string& where) {
    known(s, where, {"enum", "const", "type"});
    Json values = Json::array();
    if (s.contains("enum")) {
      EF_CHECK(s["enum"].is_array() && !s["enum"].empty(), RequestError,
               "{}.enum: expected a list of at least one value", where);
      values = s["enum"];
    } else {
      values.push_back(s["const"]);
    }
    std::vector<Sequence> alternatives;
    for (const Json& value : values) {
      if (s.contains("const") && value != s["const"]) continue;
      if (s.contains("type") && !is_of(value, s["type"])) continue;
      alternatives.push_back(g_.literal(value.dump()));
    }
    EF_CHECK(!alternatives.empty(), RequestError, "{}: no value is left by its enum, const and type", where);
    return g_.choice(std::move(alternatives));
  }

  // Whether all types of the schema are among these.
  static bool within(const Json& schema, const Json& types) {
    const Json of = schema.is_object() ? schema.value("type", Json()) : Json();
    const auto allowed = [&](const Json& one) {
      return one == types || (types.is_array() && std::find(types.begin(), types.end(), one) != types.end());
    };
    const auto fits = [&](const Json& one) {
      return one.is_string() && (allowed(one) || (one == "integer" && allowed("number")));
    };
    return of.is_array() ? std::all_of(of.begin(), of.end(), fits) : fits(of);
  }

  Sequence any(const Json& s, const char* key, const std::string& where, int depth) {
    known(s, where, {key, "type"});
    EF_CHECK(s[key].is_array() && !s[key].empty(), RequestError, "{}.{}: expected a list of schemas", where, key);
    std::vector<Sequence> alternatives;
    for (size_t i = 0; i < s[key].size(); ++i) {
      const std::string place = fmt::format("{}.{}[{}]", where, key, i);
      EF_CHECK(!s.contains("type") || within(s[key][i], s["type"]), RequestError,
               "{}: beside \"type\", expected a schema of such a type", place);
      alternatives.push_back(schema(s[key][i], place, depth + 1));
    }
    return g_.choice(std::move(alternatives));
  }

  Sequence untyped(const Json& s, const std::string& where, int depth) {
    if (s.contains("properties") || s.contains("required") || s.contains("additionalProperties"))
      return typed(s, "object", where, depth);
    if (s.contains("items") || s.contains("prefixItems")) return typed(s, "array", where, depth);
    known(s, where, {});
    return Grammar::reference(value_);
  }

  Sequence typed(const Json& s, const std::string& type, const std::string& where, int depth) {
    if (type == "object") return object_of(s, where, depth);
    if (type == "array") return array_of(s, where, depth);
    if (type == "string") return string_of(s, where);
    if (type == "integer") {
      known(s, where, {"type", "minimum"});
      if (!s.contains("minimum")) return integer_;
      EF_CHECK(s["minimum"] == 0, RequestError, "{}.minimum: only 0 is supported", where);
      return natural_;
    }
    known(s, where, {"type"});
    if (type == "number") return number_;
    if (type == "boolean") return boolean_;
    if (type == "null") return g_.literal("null");
    fail<RequestError>("{}.type: expected object, array, string, number, integer, boolean or null, found \"{}\"", where,
                       type);
  }

  Sequence string_of(const Json& s, const std::string& where) {
    known(s, where, {"type", "minLength", "maxLength", "format"});
    if (s.contains("format")) {
      known(s, where, {"type", "format"});
      return quoted(format(s["format"].is_string() ? s["format"].get<std::string>() : "", where));
    }
    const int64_t min = count(s, "minLength", 0, where), max = count(s, "maxLength", -1, where);
    EF_CHECK(max < 0 || min <= max, RequestError, "{}: minLength is larger than maxLength", where);
    return min == 0 && max < 0 ? string_ : quoted(g_.repeat(char_, min, max));
  }

  Sequence format(const std::string& name, const std::string& where) {
    const auto digits = [&](int n) { return g_.repeat(digit_, n, n); };
    const auto two = [&](std::string_view first, int low, int high) {  // "0" 1-9, ...
      return g_.bytes(any_of(first)) + g_.bytes(range(low, high));
    };
    const auto month = [&] { return g_.choice({two("0", '1', '9'), two("1", '0', '2')}); };
    // The 29th to 31st are left out: whether they exist depends on the month.
    const auto day = [&] { return g_.choice({two("0", '1', '9'), two("1", '0', '9'), two("2", '0', '8')}); };
    const auto hour = [&] { return g_.choice({two("01", '0', '9'), two("2", '0', '3')}); };
    // Not the year 0000, which most readers refuse.
    const auto date = [&] {
      return g_.bytes(range('1', '9')) + digits(3) + g_.literal("-") + month() + g_.literal("-") + day();
    };
    const auto time = [&] {
      const auto sixty = two("012345", '0', '9');
      return hour() + g_.literal(":") + sixty + g_.literal(":") + sixty +
             g_.optional(g_.literal(".") + g_.repeat(digit_, 1, 6)) +
             g_.choice({g_.literal("Z"), g_.bytes(any_of("+-")) + hour() + g_.literal(":") + sixty});
    };
    if (name == "date") return date();
    if (name == "time") return time();
    if (name == "date-time") return date() + g_.literal("T") + time();
    if (name == "uuid") {
      const auto hex = [&](int n) { return g_.repeat(g_.bytes(range('0', '9') | range('a', 'f')), n, n); };
      return hex(8) + g_.literal("-") + hex(4) + g_.literal("-") + hex(4) + g_.literal("-") + hex(4) + g_.literal("-") +
             hex(12);
    }
    fail<RequestError>("{}.format: expected date, time, date-time or uuid, found \"{}\"", where, name);
  }

  Sequence array_of(const Json& s, const std::string& where, int depth) {
    known(s, where, {"type", "items", "prefixItems", "minItems", "maxItems"});
    const int64_t min = count(s, "minItems", 0, where), max = count(s, "maxItems", -1, where);
    EF_CHECK(max < 0 || min <= max, RequestError, "{}: minItems is larger than maxItems", where);
    if (s.contains("prefixItems")) {
      const Json& prefix = s["prefixItems"];
      EF_CHECK(prefix.is_array() && !prefix.empty() && min <= int64_t(prefix.size()), RequestError,
               "{}.prefixItems: expected a list of schemas, at least minItems of them", where);
      EF_CHECK(!s.contains("items") || s["items"] == false, RequestError,
               "{}.items: only false is supported beside prefixItems", where);
      Sequence items;
      for (size_t i = 0; i < prefix.size() && (max < 0 || int64_t(i) < max); ++i)
        items = std::move(items) + (i ? comma() : Sequence{}) +
                schema(prefix[i], fmt::format("{}.prefixItems[{}]", where, i), depth + 1);
      return g_.literal("[") + space_ + items + space_ + g_.literal("]");
    }
    const Sequence item =
        s.contains("items") ? schema(s["items"], where + ".items", depth + 1) : Grammar::reference(value_);
    return list("[", "]", item, min, max);
  }

  Sequence object_of(const Json& s, const std::string& where, int depth) {
    known(s, where, {"type", "properties", "required", "additionalProperties"});
    const Json properties = s.value("properties", Json::object());
    EF_CHECK(properties.is_object(), RequestError, "{}.properties: expected an object", where);
    std::set<std::string> required;
    if (s.contains("required")) {
      EF_CHECK(s["required"].is_array(), RequestError, "{}.required: expected a list of names", where);
      for (const Json& name : s["required"]) {
        EF_CHECK(name.is_string() && properties.contains(name.get<std::string>()), RequestError,
                 "{}.required: {} is not among the properties", where, name.dump());
        required.insert(name.get<std::string>());
      }
    }
    if (properties.empty()) {
      if (!s.contains("additionalProperties") || s["additionalProperties"] == true) return object_;
      if (s["additionalProperties"] == false) return g_.literal("{") + space_ + g_.literal("}");
      return list("{", "}",
                  string_ + colon() + schema(s["additionalProperties"], where + ".additionalProperties", depth + 1), 0,
                  -1);
    }
    // From the last property to the first: what may follow when nothing has been written yet, and when something has.
    Sequence nothing_yet, something;
    std::vector<std::pair<std::string, Sequence>> members;
    for (const auto& [name, value] : properties.items())
      members.emplace_back(
          name, g_.literal(Json(name).dump()) + colon() + schema(value, where + ".properties." + name, depth + 1));
    size_t optional = 0;  // in a row: all of them may come next
    for (auto it = members.rbegin(); it != members.rend(); ++it) {
      const bool needed = required.contains(it->first);
      optional = needed ? 0 : optional + 1;
      EF_CHECK(optional <= kMostOptional, RequestError,
               "{}.properties: at most {} in a row that are not required, found more", where, kMostOptional);
      const Sequence first = it->second + something, later = comma() + it->second + something;
      nothing_yet = needed ? first : g_.choice({first, nothing_yet});
      something = needed ? later : g_.choice({later, something});
      // A rule each, so that what follows is not written out again for every way to it.
      if (needed) nothing_yet = g_.choice({nothing_yet}), something = g_.choice({something});
    }
    return g_.literal("{") + space_ + nothing_yet + space_ + g_.literal("}");
  }

  Grammar& g_;
  const Json* root_;
  Sequence digit_, space_, char_, string_, natural_, integer_, number_, boolean_, object_, array_;
  uint32_t value_ = 0;
  std::map<std::string, uint32_t> references_;
};

}  // namespace

Grammar::Sequence json_part(Grammar& grammar, const nlohmann::ordered_json* schema, const std::string& where) {
  Builder builder(grammar, schema);
  return schema ? builder.schema(*schema, where) : builder.object();
}

namespace {

std::shared_ptr<const Grammar> json_grammar(const nlohmann::ordered_json* schema) {
  auto grammar = std::make_shared<Grammar>();
  grammar->set_root(json_part(*grammar, schema, "schema"));
  return grammar;
}

}  // namespace

std::shared_ptr<const Grammar> json_object_grammar() { return json_grammar(nullptr); }
std::shared_ptr<const Grammar> json_schema_grammar(const nlohmann::ordered_json& schema) {
  return json_grammar(&schema);
}

}  // namespace ef
