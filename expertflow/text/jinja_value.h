// Values of the template language, with Python's semantics. Immutable once made, except the attributes of namespace().
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace ef::jinja {

class Runtime;
class Value;
struct Args;

/// Deepest nesting of lists and dicts; bounds every recursion over values.
inline constexpr int kMaxValueDepth = 200;
/// Largest size of one value, shared parts counted as often as they appear: bytes of its strings plus one for each
/// element.
inline constexpr int64_t kMaxValueWeight = int64_t(1) << 26;

struct List;
class Dict;

/// Anything with attributes or a call: macros, loop, namespace, bound methods.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  /// False where there is no such attribute.
  virtual bool attribute(Runtime&, std::string_view, Value&) { return false; }
  virtual Value call(Runtime&, Args&);
  virtual bool callable() const { return false; }
  virtual int depth() const { return 1; }
};

enum class Type : uint8_t { kUndefined, kNone, kBool, kInt, kFloat, kString, kList, kDict, kObject };

class Value {
 public:
  /// Undefined, with the message that a forbidden use of it gives.
  struct Undefined {
    std::shared_ptr<const std::string> why;
  };
  struct None {};

  Value() = default;
  static Value undefined(std::string why);
  static Value none() { return Value(None{}); }
  Value(bool b) : data_(b) {}                                    // NOLINT: literals convert
  Value(int64_t i) : data_(i) {}                                 // NOLINT
  Value(double d) : data_(d) {}                                  // NOLINT
  Value(None n) : data_(n) {}                                    // NOLINT
  Value(std::shared_ptr<const List> l) : data_(std::move(l)) {}  // NOLINT
  Value(std::shared_ptr<const Dict> d) : data_(std::move(d)) {}  // NOLINT
  Value(std::shared_ptr<Object> o) : data_(std::move(o)) {}      // NOLINT
  explicit Value(std::string s) : data_(std::make_shared<const std::string>(std::move(s))) {}
  Value(const char*) = delete;

  Type type() const { return Type(data_.index()); }
  bool is(Type t) const { return type() == t; }
  bool is_number() const { return is(Type::kInt) || is(Type::kFloat) || is(Type::kBool); }
  bool is_integral() const { return is(Type::kInt) || is(Type::kBool); }

  std::string undefined_why() const;
  bool as_bool() const { return std::get<bool>(data_); }
  /// Int or bool.
  int64_t as_int() const { return is(Type::kBool) ? int64_t(as_bool()) : std::get<int64_t>(data_); }
  /// Any number.
  double as_double() const { return is(Type::kFloat) ? std::get<double>(data_) : double(as_int()); }
  const std::string& as_string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  const List& as_list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  std::shared_ptr<const List> list_ptr() const { return std::get<std::shared_ptr<const List>>(data_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Object& as_object() const { return *std::get<std::shared_ptr<Object>>(data_); }
  const std::shared_ptr<Object>& object_ptr() const { return std::get<std::shared_ptr<Object>>(data_); }

  /// Python's truth of a value.
  bool truthy() const;
  /// Python's name of the type ("str", "dict", ...), for messages.
  std::string type_name() const;
  int depth() const;
  int64_t weight() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<Object>>
      data_;
};

/// What Python keeps apart: a generator has no length and is always true; views and ranges print differently.
enum class ListKind : uint8_t { kList, kTuple, kGenerator, kView, kRange, kGroup };

struct List {
  std::vector<Value> items;
  ListKind kind = ListKind::kList;
  int depth = 1;
  int64_t weight = 1;
  std::string print_name;  // "dict_items" and the like, or the text of a range
};

/// Computes depth and weight of the items. RequestError past the limits.
Value make_list(std::vector<Value> items, ListKind kind = ListKind::kList, std::string print_name = {});

/// Insertion-ordered dict. Keys compare as Python's do (1 == 1.0 == True).
class Dict {
 public:
  /// False where the key cannot be hashed (a list, a dict).
  bool set(const Value& key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  int depth() const { return depth_; }
  int64_t weight() const { return weight_; }

 private:
  std::vector<std::pair<Value, Value>> items_;
  std::unordered_map<std::string, size_t> index_;
  int depth_ = 1;
  int64_t weight_ = 1;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

/// RequestError where the nesting is deeper than kMaxValueDepth. Integers past int64 become floats.
Value from_json(const nlohmann::ordered_json& json, int depth = 0);

bool equal(const Value& a, const Value& b);
/// -1, 0, 1; RequestError where Python has no order for the two.
int compare(const Value& a, const Value& b);
/// Appends the dict key form of a value; false where it cannot be hashed.
bool append_key(std::string& out, const Value& v);

/// str(v) of Python; undefined gives nothing.
std::string to_string(const Value& v);
/// repr(v) of Python.
void append_repr(std::string& out, const Value& v, int depth = 0);
std::string float_repr(double d);

struct JsonStyle {
  int indent = -1;  // -1: one line
  std::string indent_text;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
  bool ascii = false;
};
/// json.dumps(v, ensure_ascii=False) of Python. RequestError for what JSON has no form for.
void append_json(std::string& out, const Value& v, const JsonStyle& style, int level = 0);

}  // namespace ef::jinja
