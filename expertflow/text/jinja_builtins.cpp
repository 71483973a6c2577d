// Global functions, tests, namespace, and how arguments are bound.
#include <algorithm>
#include <cmath>
#include <ctime>

#include "expertflow/text/jinja_runtime.h"
#include "expertflow/text/jinja_unicode.h"

namespace ef::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;  // the sandbox of Jinja2 has the same limit

class Function final : public Object {
 public:
  using Body = Value (*)(Runtime&, Args&);
  explicit Function(Body body) : body_(body) {}
  std::string type_name() const override { return "function"; }
  Value call(Runtime& rt, Args& args) override { return body_(rt, args); }
  bool callable() const override { return true; }

 private:
  Body body_;
};

class Cycler final : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(Value items) : items_(std::move(items)) {}
  std::string type_name() const override { return "Cycler"; }
  int depth() const override { return items_.depth() + 1; }
  bool attribute(Runtime&, std::string_view name, Value& out) override;
  Value next() {
    const auto& items = items_.as_list().items;
    Value v = items[pos_];
    pos_ = (pos_ + 1) % items.size();
    return v;
  }
  void reset() { pos_ = 0; }

 private:
  Value items_;
  size_t pos_ = 0;
};

class CyclerMethod final : public Object {
 public:
  CyclerMethod(std::shared_ptr<Cycler> cycler, bool next) : cycler_(std::move(cycler)), next_(next) {}
  std::string type_name() const override { return "method"; }
  bool callable() const override { return true; }
  int depth() const override { return cycler_->depth() + 1; }
  Value call(Runtime&, Args&) override {
    if (next_) return cycler_->next();
    cycler_->reset();
    return Value::none();
  }

 private:
  std::shared_ptr<Cycler> cycler_;
  bool next_;
};

bool Cycler::attribute(Runtime&, std::string_view name, Value& out) {
  if (name == "current") {
    out = items_.as_list().items[pos_];
  } else if (name == "next" || name == "reset") {
    out = Value(std::shared_ptr<Object>(std::make_shared<CyclerMethod>(shared_from_this(), name == "next")));
  } else {
    return false;
  }
  return true;
}

class Joiner final : public Object {
 public:
  explicit Joiner(std::string separator) : separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Runtime& rt, Args&) override {
    if (used_) return rt.text(separator_);
    used_ = true;
    return Value(std::string());
  }

 private:
  std::string separator_;
  bool used_ = false;
};

Value range(Runtime& rt, Args& args) {
  EF_CHECK(args.keyword.empty() && !args.positional.empty() && args.positional.size() <= 3, RequestError,
           "chat template: range() takes 1 to 3 arguments");
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < args.positional.size(); ++i) bounds[i] = int_argument(&args.positional[i], 0, "range");
  if (args.positional.size() == 1) std::swap(bounds[0], bounds[1]);
  const auto [begin, end, step] = bounds;
  EF_CHECK(step != 0, RequestError, "chat template: range() arg 3 must not be zero");
  const double count = std::ceil((double(end) - double(begin)) / double(step));
  EF_CHECK(count <= double(kMaxRange), RequestError,
           "chat template: Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange);
  std::vector<Value> items;
  int64_t next = begin;
  for (int64_t i = 0; i < int64_t(count); ++i) {
    items.push_back(Value(next));
    if (i + 1 < int64_t(count)) next += step;
  }
  std::string name =
      step == 1 ? fmt::format("range({}, {})", begin, end) : fmt::format("range({}, {}, {})", begin, end, step);
  return rt.list(std::move(items), ListKind::kRange, std::move(name));
}

std::vector<std::pair<std::string, Value>> named_values(Runtime& rt, Args& args, std::string_view function) {
  std::vector<std::pair<std::string, Value>> values;
  EF_CHECK(args.positional.size() <= 1, RequestError, "chat template: {}() takes at most 1 positional argument",
           function);
  if (!args.positional.empty()) {
    EF_CHECK(args.positional[0].is(Type::kDict), RequestError, "chat template: {}(): expected a dict, found {}",
             function, args.positional[0].type_name());
    for (const auto& [key, value] : args.positional[0].as_dict().items()) values.emplace_back(rt.string(key), value);
  }
  for (auto& [name, value] : args.keyword) values.emplace_back(name, std::move(value));
  return values;
}

Value make_namespace(Runtime& rt, Args& args) { return rt.make_namespace(named_values(rt, args, "namespace")); }

Value make_dict(Runtime& rt, Args& args) {
  auto dict = std::make_shared<Dict>();
  for (auto& [name, value] : named_values(rt, args, "dict")) {
    rt.charge(name.size() + 2 * sizeof(Value));
    dict->set(Value(std::string(name)), value);
  }
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

Value raise_exception(Runtime& rt, Args& args) {
  const auto bound = bind(args, "raise_exception", {"message"}, 1);
  throw TemplateRaised(rt.string(*bound[0]));
}

Value strftime_now(Runtime& rt, Args& args) {
  const auto bound = bind(args, "strftime_now", {"format"}, 1);
  const std::string& format = string_argument(*bound[0], "strftime_now");
  if (format.empty()) return Value(std::string());
  char buffer[512];
  const size_t n = std::strftime(buffer, sizeof buffer, format.c_str(), &rt.now());
  return rt.text(std::string(buffer, n));
}

Value make_cycler(Runtime& rt, Args& args) {
  EF_CHECK(!args.positional.empty(), RequestError, "chat template: cycler(): at least one item has to be provided");
  auto cycler = std::make_shared<Cycler>(rt.list(std::move(args.positional)));
  return Value(std::shared_ptr<Object>(std::move(cycler)));
}

Value make_joiner(Runtime& rt, Args& args) {
  const auto bound = bind(args, "joiner", {"sep"});
  return Value(std::shared_ptr<Object>(std::make_shared<Joiner>(bound[0] == nullptr ? ", " : rt.string(*bound[0]))));
}

struct GlobalRow {
  std::string_view name;
  Function::Body body;
};
constexpr GlobalRow kGlobals[] = {
    {"range", range},
    {"namespace", make_namespace},
    {"dict", make_dict},
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
    {"cycler", make_cycler},
    {"joiner", make_joiner},
};

const Value& only_argument(Args& args, std::string_view name) {
  EF_CHECK(args.positional.size() == 1 && args.keyword.empty(), RequestError,
           "chat template: test '{}' takes one argument", name);
  return args.positional[0];
}

int64_t integer(const Value& v, std::string_view test) { return int_argument(&v, 0, test); }

bool is_iterable(const Value& v) {
  return v.is(Type::kUndefined) || v.is(Type::kString) || v.is(Type::kList) || v.is(Type::kDict);
}

bool is_sequence(const Value& v) {
  if (v.is(Type::kList)) return v.as_list().kind != ListKind::kGenerator && v.as_list().kind != ListKind::kView;
  return is_iterable(v);
}

template <class Predicate>
bool all_cased(const std::string& s, Predicate wanted) {
  bool any = false;
  for (size_t i = 0; i < s.size(); i += char_length(s, i)) {
    const int32_t c = code_point(s, i);
    if (!is_upper(c) && !is_lower(c)) continue;
    if (!wanted(c)) return false;
    any = true;
  }
  return any;
}

struct TestRow {
  std::string_view name;
  TestFunction function;
};
const TestRow kTests[] = {
    {"defined", [](Runtime&, const Value& v, Args&) { return !v.is(Type::kUndefined); }},
    {"undefined", [](Runtime&, const Value& v, Args&) { return v.is(Type::kUndefined); }},
    {"none", [](Runtime&, const Value& v, Args&) { return v.is(Type::kNone); }},
    {"string", [](Runtime&, const Value& v, Args&) { return v.is(Type::kString); }},
    {"number", [](Runtime&, const Value& v, Args&) { return v.is_number(); }},
    {"integer", [](Runtime&, const Value& v, Args&) { return v.is(Type::kInt); }},
    {"float", [](Runtime&, const Value& v, Args&) { return v.is(Type::kFloat); }},
    {"boolean", [](Runtime&, const Value& v, Args&) { return v.is(Type::kBool); }},
    {"true", [](Runtime&, const Value& v, Args&) { return v.is(Type::kBool) && v.as_bool(); }},
    {"false", [](Runtime&, const Value& v, Args&) { return v.is(Type::kBool) && !v.as_bool(); }},
    {"mapping", [](Runtime&, const Value& v, Args&) { return v.is(Type::kDict); }},
    {"sequence", [](Runtime&, const Value& v, Args&) { return is_sequence(v); }},
    {"iterable", [](Runtime&, const Value& v, Args&) { return is_iterable(v); }},
    {"callable", [](Runtime&, const Value& v, Args&) { return v.is(Type::kObject) && v.as_object().callable(); }},
    {"escaped", [](Runtime&, const Value&, Args&) { return false; }},
    {"sameas",
     [](Runtime&, const Value& v, Args& a) {
       const Value& other = only_argument(a, "sameas");
       return v.type() == other.type() && equal(v, other);
     }},
    {"in", [](Runtime& rt, const Value& v, Args& a) { return rt.contains(only_argument(a, "in"), v); }},
    {"odd", [](Runtime&, const Value& v, Args&) { return integer(v, "odd") % 2 != 0; }},
    {"even", [](Runtime&, const Value& v, Args&) { return integer(v, "even") % 2 == 0; }},
    {"divisibleby",
     [](Runtime&, const Value& v, Args& a) {
       const int64_t n = integer(only_argument(a, "divisibleby"), "divisibleby");
       EF_CHECK(n != 0, RequestError, "chat template: division by zero");
       return n == -1 || integer(v, "divisibleby") % n == 0;
     }},
    {"lower", [](Runtime& rt, const Value& v, Args&) { return all_cased(rt.string(v), is_lower); }},
    {"upper", [](Runtime& rt, const Value& v, Args&) { return all_cased(rt.string(v), is_upper); }},
    {"filter",
     [](Runtime&, const Value& v, Args&) { return v.is(Type::kString) && find_filter(v.as_string()) != nullptr; }},
    {"test",
     [](Runtime&, const Value& v, Args&) { return v.is(Type::kString) && find_test(v.as_string()) != nullptr; }},
    {"eq", [](Runtime& rt, const Value& v, Args& a) { return rt.equals(v, only_argument(a, "eq")); }},
    {"ne", [](Runtime& rt, const Value& v, Args& a) { return !rt.equals(v, only_argument(a, "ne")); }},
    {"lt", [](Runtime& rt, const Value& v, Args& a) { return rt.order(v, only_argument(a, "lt")) < 0; }},
    {"le", [](Runtime& rt, const Value& v, Args& a) { return rt.order(v, only_argument(a, "le")) <= 0; }},
    {"gt", [](Runtime& rt, const Value& v, Args& a) { return rt.order(v, only_argument(a, "gt")) > 0; }},
    {"ge", [](Runtime& rt, const Value& v, Args& a) { return rt.order(v, only_argument(a, "ge")) >= 0; }},
};

std::string_view test_alias(std::string_view name) {
  if (name == "equalto" || name == "==") return "eq";
  if (name == "!=") return "ne";
  if (name == "lessthan" || name == "<") return "lt";
  if (name == "<=") return "le";
  if (name == "greaterthan" || name == ">") return "gt";
  if (name == ">=") return "ge";
  return name;
}

}  // namespace

TestFunction find_test(std::string_view name) {
  name = test_alias(name);
  for (const TestRow& row : kTests) {
    if (row.name == name) return row.function;
  }
  return nullptr;
}

Value find_global(Runtime&, std::string_view name) {
  for (const GlobalRow& row : kGlobals) {
    if (row.name == name) return Value(std::shared_ptr<Object>(std::make_shared<Function>(row.body)));
  }
  return {};
}

Namespace::Namespace(std::vector<std::pair<std::string, Value>> attributes) {
  for (auto& [name, value] : attributes) set(name, std::move(value));
}

bool Namespace::attribute(Runtime&, std::string_view name, Value& out) {
  for (const auto& [key, value] : attributes_) {
    if (key == name) {
      out = value;
      return true;
    }
  }
  return false;
}

void Namespace::set(std::string_view name, Value value) {
  for (auto& [key, old] : attributes_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  attributes_.emplace_back(name, std::move(value));
}

void Namespace::clear() { attributes_.clear(); }

std::vector<const Value*> bind(const Args& args, std::string_view function,
                               std::initializer_list<std::string_view> names, size_t required) {
  EF_CHECK(args.positional.size() <= names.size(), RequestError,
           "chat template: {}() takes at most {} arguments, {} given", function, names.size(), args.positional.size());
  std::vector<const Value*> bound(names.size(), nullptr);
  for (size_t i = 0; i < args.positional.size(); ++i) bound[i] = &args.positional[i];
  for (const auto& [name, value] : args.keyword) {
    const auto it = std::find(names.begin(), names.end(), name);
    EF_CHECK(it != names.end(), RequestError, "chat template: {}() got an unexpected keyword argument '{}'", function,
             name);
    const Value*& slot = bound[size_t(it - names.begin())];
    EF_CHECK(slot == nullptr, RequestError, "chat template: {}() got multiple values for argument '{}'", function,
             name);
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    EF_CHECK(bound[i] != nullptr, RequestError, "chat template: {}() missing the argument '{}'", function,
             *(names.begin() + i));
  }
  return bound;
}

int64_t int_argument(const Value* v, int64_t absent, std::string_view function) {
  if (v == nullptr) return absent;
  if (v->is(Type::kUndefined)) fail<RequestError>("chat template: {}", v->undefined_why());
  EF_CHECK(v->is_integral(), RequestError, "chat template: {}: expected an integer, found {}", function,
           v->type_name());
  return v->as_int();
}

const std::string& string_argument(const Value& v, std::string_view function) {
  if (v.is(Type::kUndefined)) fail<RequestError>("chat template: {}", v.undefined_why());
  EF_CHECK(v.is(Type::kString), RequestError, "chat template: {}: expected a string, found {}", function,
           v.type_name());
  return v.as_string();
}

}  // namespace ef::jinja
