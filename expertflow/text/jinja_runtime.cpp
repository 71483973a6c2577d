#include "expertflow/text/jinja_runtime.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "expertflow/text/jinja_unicode.h"

namespace ef::jinja {
namespace {

class Method final : public Object {
 public:
  Method(Value self, FilterFunction function) : self_(std::move(self)), function_(function) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  Value call(Runtime& rt, Args& args) override { return function_(rt, self_, args); }
  bool callable() const override { return true; }
  int depth() const override { return self_.depth() + 1; }

 private:
  Value self_;
  FilterFunction function_;
};

[[noreturn]] void fail_undefined(const Value& v) { fail<RequestError>("chat template: {}", v.undefined_why()); }

void refuse_undefined(const Value& v) {
  if (v.is(Type::kUndefined)) fail_undefined(v);
}

std::string describe(const Value& v) { return v.is(Type::kDict) ? "dict object" : v.type_name() + " object"; }

Value missing(const Value& v, std::string_view name) {
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", describe(v), name));
}

/// Methods, and the attributes of objects. False where there is none.
bool python_attribute(Runtime& rt, const Value& v, std::string_view name, Value& out) {
  if (v.is(Type::kObject)) return v.as_object().attribute(rt, name, out);
  if (const FilterFunction method = find_method(v, name)) {
    EF_CHECK(v.depth() < kMaxValueDepth, RequestError, "chat template: values are nested more than {} deep",
             kMaxValueDepth);
    out = Value(std::shared_ptr<Object>(std::make_shared<Method>(v, method)));
    return true;
  }
  if (is_mutator(v, name)) {
    out = Value::undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, v.type_name()));
    return true;
  }
  if (v.is(Type::kList) && v.as_list().kind == ListKind::kGroup && (name == "grouper" || name == "list")) {
    out = v.as_list().items[name == "grouper" ? 0 : 1];
    return true;
  }
  return false;
}

/// obj[key] alone. False where Python raises an error that Jinja turns into undefined.
bool python_item(Runtime& rt, const Value& v, const Value& key, Value& out) {
  if (v.is(Type::kDict)) {
    const Value* found = v.as_dict().find(key);
    if (found == nullptr) return false;
    out = *found;
    return true;
  }
  if (!key.is_integral()) return false;
  const int64_t index = key.as_int();
  if (v.is(Type::kString)) {
    rt.work(v.as_string().size());
    const auto offsets = char_offsets(v.as_string());
    const int64_t n = int64_t(offsets.size()) - 1;
    const int64_t i = index < 0 ? index + n : index;
    if (i < 0 || i >= n) return false;
    out = rt.text(v.as_string().substr(offsets[size_t(i)], offsets[size_t(i) + 1] - offsets[size_t(i)]));
    return true;
  }
  if (v.is(Type::kList) && v.as_list().kind != ListKind::kGenerator && v.as_list().kind != ListKind::kView) {
    const auto& items = v.as_list().items;
    const int64_t i = index < 0 ? index + int64_t(items.size()) : index;
    if (i < 0 || i >= int64_t(items.size())) return false;
    out = items[size_t(i)];
    return true;
  }
  return false;
}

constexpr const char* kOutOfRange = "chat template: an integer is out of range";

int64_t add(int64_t a, int64_t b) {
  int64_t r = 0;
  EF_CHECK(!__builtin_add_overflow(a, b, &r), RequestError, "{}", kOutOfRange);
  return r;
}

int64_t subtract(int64_t a, int64_t b) {
  int64_t r = 0;
  EF_CHECK(!__builtin_sub_overflow(a, b, &r), RequestError, "{}", kOutOfRange);
  return r;
}

int64_t multiply(int64_t a, int64_t b) {
  int64_t r = 0;
  EF_CHECK(!__builtin_mul_overflow(a, b, &r), RequestError, "{}", kOutOfRange);
  return r;
}

int64_t floor_div(int64_t a, int64_t b) {
  EF_CHECK(!(b == -1 && a == std::numeric_limits<int64_t>::min()), RequestError, "{}", kOutOfRange);
  const int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = multiply(result, base);
    if (exponent > 1) base = multiply(base, base);
  }
  return result;
}

Value integer_operation(std::string_view op, int64_t a, int64_t b) {
  if (op == "+") return add(a, b);
  if (op == "-") return subtract(a, b);
  if (op == "*") return multiply(a, b);
  if (op == "**") return b < 0 ? Value(std::pow(double(a), double(b))) : Value(integer_power(a, b));
  EF_CHECK(b != 0, RequestError, "chat template: division by zero");
  if (op == "/") return double(a) / double(b);
  const int64_t q = floor_div(a, b);
  return op == "//" ? Value(q) : Value(a - q * b);
}

Value float_operation(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return std::pow(a, b);
  EF_CHECK(b != 0, RequestError, "chat template: division by zero");
  if (op == "/") return a / b;
  double r = std::fmod(a, b);
  if (r != 0 && ((r < 0) != (b < 0))) r += b;
  return op == "%" ? Value(r) : Value(std::floor((a - r) / b + 0.5));
}

Value repeat(Runtime& rt, const Value& sequence, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const int64_t weight = sequence.weight();
  EF_CHECK(count == 0 || weight <= kMaxValueWeight / count, RequestError,
           "chat template: a value is larger than {} bytes", kMaxValueWeight);
  if (sequence.is(Type::kString)) {
    rt.charge(size_t(weight * count));
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += sequence.as_string();
    return Value(std::move(out));
  }
  std::vector<Value> items;
  rt.charge(sequence.as_list().items.size() * size_t(count) * sizeof(Value));
  for (int64_t i = 0; i < count; ++i)
    items.insert(items.end(), sequence.as_list().items.begin(), sequence.as_list().items.end());
  return rt.list(std::move(items), sequence.as_list().kind);
}

bool is_sequence(const Value& v) {
  return v.is(Type::kString) ||
         (v.is(Type::kList) && (v.as_list().kind == ListKind::kList || v.as_list().kind == ListKind::kTuple));
}

}  // namespace

Runtime::~Runtime() {
  for (const auto& ns : namespaces_) static_cast<Namespace&>(*ns).clear();
}

void Runtime::step(int64_t count) {
  limits_.stop();
  steps_ += count;
  EF_CHECK(steps_ <= limits_.steps, RequestError, "chat template: more than {} steps", limits_.steps);
}

void Runtime::charge(size_t bytes) {
  EF_CHECK(bytes <= size_t(limits_.bytes), RequestError, "chat template: more than {} bytes of values", limits_.bytes);
  bytes_ += int64_t(bytes);
  EF_CHECK(bytes_ <= limits_.bytes, RequestError, "chat template: more than {} bytes of values", limits_.bytes);
}

Value Runtime::text(std::string s) {
  charge(s.size() + sizeof(std::string));
  EF_CHECK(int64_t(s.size()) <= kMaxValueWeight, RequestError, "chat template: a value is larger than {} bytes",
           kMaxValueWeight);
  return Value(std::move(s));
}

Value Runtime::list(std::vector<Value> items, ListKind kind, std::string print_name) {
  charge(items.size() * sizeof(Value) + sizeof(List));
  step(int64_t(items.size() / 16));
  return make_list(std::move(items), kind, std::move(print_name));
}

Value Runtime::make_namespace(std::vector<std::pair<std::string, Value>> attributes) {
  charge(sizeof(Namespace) + attributes.size() * sizeof(Value));
  auto ns = std::make_shared<Namespace>(std::move(attributes));
  namespaces_.push_back(ns);
  return Value(std::shared_ptr<Object>(std::move(ns)));
}

Value Runtime::attribute(const Value& v, std::string_view name) {
  refuse_undefined(v);
  Value out;
  if (name.starts_with("_")) return missing(v, name);
  if (python_attribute(*this, v, name, out)) return out;
  if (v.is(Type::kDict)) {
    if (const Value* found = v.as_dict().find(name)) return *found;
  }
  return missing(v, name);
}

Value Runtime::item(const Value& v, const Value& key) {
  refuse_undefined(v);
  Value out;
  if (python_item(*this, v, key, out)) return out;
  if (key.is(Type::kString)) {
    if (!key.as_string().starts_with("_") && python_attribute(*this, v, key.as_string(), out)) return out;
    return missing(v, key.as_string());
  }
  refuse_undefined(key);
  return Value::undefined(fmt::format("{} has no element {}", describe(v), string(key)));
}

Value Runtime::slice(const Value& v, const Value* begin, const Value* end, const Value* step_value) {
  refuse_undefined(v);
  const bool is_text = v.is(Type::kString);
  if (!is_text &&
      (!v.is(Type::kList) || v.as_list().kind == ListKind::kGenerator || v.as_list().kind == ListKind::kView)) {
    return Value::undefined(fmt::format("'{}' cannot be sliced", describe(v)));
  }
  work(is_text ? v.as_string().size() : v.as_list().items.size());
  const std::vector<size_t> offsets = is_text ? char_offsets(v.as_string()) : std::vector<size_t>();
  const int64_t n = is_text ? int64_t(offsets.size()) - 1 : int64_t(v.as_list().items.size());
  const auto number = [&](const Value* bound, int64_t absent) {
    if (bound == nullptr || bound->is(Type::kNone)) return absent;
    refuse_undefined(*bound);
    EF_CHECK(bound->is_integral(), RequestError, "chat template: slice indices must be integers, found {}",
             bound->type_name());
    return bound->as_int();
  };
  const int64_t by = number(step_value, 1);
  EF_CHECK(by != 0, RequestError, "chat template: slice step cannot be zero");
  const int64_t low = by > 0 ? 0 : -1;
  const int64_t high = by > 0 ? n : n - 1;
  const auto clamp = [&](const Value* bound, int64_t absent) {
    if (bound == nullptr || bound->is(Type::kNone)) return absent;
    const int64_t i = number(bound, 0);
    return std::clamp(i < 0 ? (i < -n ? low : i + n) : i, low, high);
  };
  const int64_t from = clamp(begin, by > 0 ? low : high);
  const int64_t to = clamp(end, by > 0 ? high : low);
  std::vector<int64_t> picks;
  // The distance is compared, not the next index: a step near the limits would overflow.
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    picks.push_back(i);
    if (by > 0 ? by >= to - i : by <= to - i) break;
    i += by;
  }
  if (is_text) {
    std::string out;
    for (int64_t i : picks) out.append(v.as_string(), offsets[size_t(i)], offsets[size_t(i) + 1] - offsets[size_t(i)]);
    return text(std::move(out));
  }
  std::vector<Value> items;
  for (int64_t i : picks) items.push_back(v.as_list().items[size_t(i)]);
  const ListKind kind = v.as_list().kind == ListKind::kRange ? ListKind::kList : v.as_list().kind;
  return list(std::move(items), kind == ListKind::kGroup ? ListKind::kTuple : kind);
}

Value Runtime::call(const Value& function, Args& args) {
  step();
  refuse_undefined(function);
  if (!function.is(Type::kObject))
    fail<RequestError>("chat template: '{}' object is not callable", function.type_name());
  return function.as_object().call(*this, args);
}

std::shared_ptr<const List> Runtime::iterate(const Value& v) {
  if (v.is(Type::kList)) return v.list_ptr();
  std::vector<Value> items;
  if (v.is(Type::kDict)) {
    for (const auto& [key, value] : v.as_dict().items()) items.push_back(key);
  } else if (v.is(Type::kString)) {
    const std::string& s = v.as_string();
    charge(s.size() * (sizeof(Value) + sizeof(std::string)));
    for (size_t i = 0; i < s.size(); i += char_length(s, i)) items.push_back(Value(s.substr(i, char_length(s, i))));
  } else if (!v.is(Type::kUndefined)) {
    fail<RequestError>("chat template: '{}' object is not iterable", v.type_name());
  }
  return list(std::move(items)).list_ptr();
}

int64_t Runtime::length(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
      return 0;
    case Type::kString:
      work(v.as_string().size());
      return int64_t(count_chars(v.as_string()));
    case Type::kDict:
      return int64_t(v.as_dict().size());
    case Type::kList:
      if (v.as_list().kind != ListKind::kGenerator) return int64_t(v.as_list().items.size());
      break;
    default:
      break;
  }
  fail<RequestError>("chat template: object of type '{}' has no len()", v.type_name());
}

bool Runtime::contains(const Value& container, const Value& item) {
  if (container.is(Type::kString)) {
    if (!item.is(Type::kString)) {
      fail<RequestError>("chat template: 'in <string>' requires string as left operand, not {}", item.type_name());
    }
    const size_t n = container.as_string().size();
    work(n + n / 1024 * item.as_string().size());
    return container.as_string().find(item.as_string()) != std::string::npos;
  }
  if (container.is(Type::kDict)) return container.as_dict().find(item) != nullptr;
  const auto items = iterate(container);
  for (const Value& candidate : items->items) {
    if (equals(candidate, item)) return true;
  }
  return false;
}

bool Runtime::equals(const Value& a, const Value& b) {
  work(size_t(std::min(a.weight(), b.weight())));
  return equal(a, b);
}

int Runtime::order(const Value& a, const Value& b) {
  work(size_t(std::min(a.weight(), b.weight())));
  return compare(a, b);
}

Value Runtime::binary(std::string_view op, const Value& a, const Value& b) {
  refuse_undefined(a);
  if (op == "%" && a.is(Type::kString)) return text(percent_format(*this, a.as_string(), b));
  refuse_undefined(b);
  if (a.is_integral() && b.is_integral()) return integer_operation(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return float_operation(op, a.as_double(), b.as_double());
  if (op == "+" && a.is(Type::kString) && b.is(Type::kString)) {
    charge(a.as_string().size() + b.as_string().size());
    return text(a.as_string() + b.as_string());
  }
  if (op == "+" && is_sequence(a) && is_sequence(b) && a.type_name() == b.type_name()) {
    std::vector<Value> items = a.as_list().items;
    items.insert(items.end(), b.as_list().items.begin(), b.as_list().items.end());
    return list(std::move(items), a.as_list().kind);
  }
  if (op == "*" && is_sequence(a) && b.is_integral()) return repeat(*this, a, b.as_int());
  if (op == "*" && is_sequence(b) && a.is_integral()) return repeat(*this, b, a.as_int());
  fail<RequestError>("chat template: unsupported operand types for {}: '{}' and '{}'", op, a.type_name(),
                     b.type_name());
}

Value Runtime::negative(const Value& v, bool negate) {
  refuse_undefined(v);
  EF_CHECK(v.is_number(), RequestError, "chat template: bad operand type for unary {}: '{}'", negate ? '-' : '+',
           v.type_name());
  if (v.is(Type::kFloat)) return negate ? -v.as_double() : v.as_double();
  return negate ? integer_operation("-", 0, v.as_int()) : Value(v.as_int());
}

std::string Runtime::string(const Value& v) {
  charge(size_t(v.weight()));
  work(size_t(v.weight()));
  return to_string(v);
}

std::string Runtime::json(const Value& v, const JsonStyle& style) {
  work(size_t(v.weight()));
  const size_t separators = style.item_separator.size() + style.key_separator.size();
  const size_t per_element = 1 + separators + (style.indent < 0 ? 0 : size_t(v.depth()) * style.indent_text.size());
  charge(size_t(v.weight()) * per_element);
  std::string out;
  append_json(out, v, style);
  return out;
}

Value Runtime::filter(std::string_view name, const Value& input, Args& args) {
  const FilterFunction function = find_filter(name);
  EF_CHECK(function != nullptr, RequestError, "chat template: No filter named '{}'.", name);
  step();
  return function(*this, input, args);
}

bool Runtime::test(std::string_view name, const Value& input, Args& args) {
  const TestFunction function = find_test(name);
  EF_CHECK(function != nullptr, RequestError, "chat template: No test named '{}'.", name);
  step();
  return function(*this, input, args);
}

}  // namespace ef::jinja
