// What every part of the interpreter shares: limits, Python's operators on values, and the tables of filters, tests and
// methods.
#pragma once
#include <ctime>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/base/errors.h"
#include "expertflow/base/stop_check.h"
#include "expertflow/text/jinja_value.h"

namespace ef::jinja {

/// Bounds of one rendering. A template is foreign code: it must neither hang nor fill the memory.
struct Limits {
  int64_t steps = 50'000'000;          // operations
  int64_t bytes = int64_t(1) << 30;    // of all values made
  int64_t output = int64_t(64) << 20;  // bytes of the result
  StopCheck stop{};                    // looked at in every step
};

/// What raise_exception(message) throws: what() is the template's message and nothing else.
class TemplateRaised : public RequestError {
 public:
  using RequestError::RequestError;
};

class Runtime;
using FilterFunction = Value (*)(Runtime&, const Value& input, Args& args);
using TestFunction = bool (*)(Runtime&, const Value& input, Args& args);

/// nullptr where there is no such filter, test or method.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);
FilterFunction find_method(const Value& self, std::string_view name);
/// Python has the method, but it changes its object: Hugging Face's sandbox refuses it.
bool is_mutator(const Value& self, std::string_view name);
/// Undefined where there is no such global.
Value find_global(Runtime& rt, std::string_view name);

class Runtime {
 public:
  Runtime(const Limits& limits, const std::tm& now) : limits_(limits), now_(now) {}
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Counts work; RequestError past the limit.
  void step(int64_t count = 1);
  /// Counts work over so many bytes.
  void work(size_t bytes) { step(1 + int64_t(bytes / 64)); }
  void charge(size_t bytes);
  const Limits& limits() const { return limits_; }
  const std::tm& now() const { return now_; }

  Value text(std::string s);
  Value list(std::vector<Value> items, ListKind kind = ListKind::kList, std::string print_name = {});
  /// A namespace object. The runtime empties it at its end, so that cycles through it do not leak.
  Value make_namespace(std::vector<std::pair<std::string, Value>> attributes);

  Value attribute(const Value& v, std::string_view name);
  Value item(const Value& v, const Value& key);
  /// Null bounds are left out.
  Value slice(const Value& v, const Value* begin, const Value* end, const Value* step);
  Value call(const Value& function, Args& args);
  /// The items that a for loop visits.
  std::shared_ptr<const List> iterate(const Value& v);
  int64_t length(const Value& v);
  bool contains(const Value& container, const Value& item);
  bool equals(const Value& a, const Value& b);
  int order(const Value& a, const Value& b);
  Value binary(std::string_view op, const Value& a, const Value& b);
  Value negative(const Value& v, bool negate);
  std::string string(const Value& v);
  std::string json(const Value& v, const JsonStyle& style);
  Value filter(std::string_view name, const Value& input, Args& args);
  bool test(std::string_view name, const Value& input, Args& args);

 private:
  Limits limits_;
  std::tm now_;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  std::vector<std::shared_ptr<Object>> namespaces_;
};

/// The attributes of namespace(); the one thing a template may change.
class Namespace final : public Object {
 public:
  explicit Namespace(std::vector<std::pair<std::string, Value>> attributes);
  std::string type_name() const override { return "Namespace"; }
  bool attribute(Runtime&, std::string_view name, Value& out) override;
  void set(std::string_view name, Value value);
  void clear();

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

/// Arguments by Python's rules: positional first, then by name. Elements are null where an argument is absent.
/// RequestError naming the function for unknown, double, missing or too many arguments.
std::vector<const Value*> bind(const Args& args, std::string_view function,
                               std::initializer_list<std::string_view> names, size_t required = 0);

int64_t int_argument(const Value* v, int64_t absent, std::string_view function);
const std::string& string_argument(const Value& v, std::string_view function);

/// The split of a dotted attribute path ("a.b.0"), and the value it leads to.
Value follow_path(Runtime& rt, const Value& v, const Value& path);

/// '%s %d' formatting of Python.
std::string percent_format(Runtime& rt, std::string_view format, const Value& values);

}  // namespace ef::jinja
