#include "expertflow/text/jinja_eval.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "expertflow/text/jinja.h"
#include "expertflow/text/jinja_parser.h"
#include "expertflow/text/jinja_unicode.h"

namespace ef::jinja {
namespace {

constexpr int kMaxEvalDepth = 800;

/// The variable `loop`.
class Loop final : public Object, public std::enable_shared_from_this<Loop> {
 public:
  explicit Loop(std::shared_ptr<const List> items) : items_(std::move(items)) {}
  std::string type_name() const override { return "LoopContext"; }
  int depth() const override { return items_->depth + 1; }
  void move_to(size_t index) { index_ = index; }

  bool attribute(Runtime& rt, std::string_view name, Value& out) override;
  Value cycle(Args& args) const {
    EF_CHECK(!args.positional.empty(), RequestError, "chat template: no items for cycling given");
    return args.positional[index_ % args.positional.size()];
  }
  Value changed(Runtime& rt, Args& args) {
    // Kept as text: a value could hold this loop and never be freed.
    std::string now = rt.string(rt.list(std::move(args.positional)));
    const bool same = has_last_ && now == last_;
    last_ = std::move(now);
    has_last_ = true;
    return !same;
  }

 private:
  std::shared_ptr<const List> items_;
  size_t index_ = 0;
  bool has_last_ = false;
  std::string last_;
};

class LoopMethod final : public Object {
 public:
  LoopMethod(std::shared_ptr<Loop> loop, bool cycle) : loop_(std::move(loop)), cycle_(cycle) {}
  std::string type_name() const override { return "method"; }
  bool callable() const override { return true; }
  int depth() const override { return loop_->depth() + 1; }
  Value call(Runtime& rt, Args& args) override { return cycle_ ? loop_->cycle(args) : loop_->changed(rt, args); }

 private:
  std::shared_ptr<Loop> loop_;
  bool cycle_;
};

bool Loop::attribute(Runtime&, std::string_view name, Value& out) {
  const auto& items = items_->items;
  const int64_t n = int64_t(items.size());
  const int64_t i = int64_t(index_);
  if (name == "index") {
    out = i + 1;
  } else if (name == "index0") {
    out = i;
  } else if (name == "revindex") {
    out = n - i;
  } else if (name == "revindex0") {
    out = n - i - 1;
  } else if (name == "first") {
    out = i == 0;
  } else if (name == "last") {
    out = i + 1 == n;
  } else if (name == "length") {
    out = n;
  } else if (name == "depth") {
    out = int64_t(1);
  } else if (name == "depth0") {
    out = int64_t(0);
  } else if (name == "previtem") {
    out = i > 0 ? items[index_ - 1] : Value::undefined("there is no previous item");
  } else if (name == "nextitem") {
    out = i + 1 < n ? items[index_ + 1] : Value::undefined("there is no next item");
  } else if (name == "cycle" || name == "changed") {
    out = Value(std::shared_ptr<Object>(std::make_shared<LoopMethod>(shared_from_this(), name == "cycle")));
  } else {
    return false;
  }
  return true;
}

std::string with_line(const std::string& message, int line) {
  static constexpr std::string_view kPrefix = "chat template: ";
  if (!message.starts_with(kPrefix)) return message;
  return fmt::format("chat template, line {}: {}", line, message.substr(kPrefix.size()));
}

}  // namespace

/// A macro or the caller() of a call block. Holds its scope weakly: the scope holds the macro.
class Macro final : public Object {
 public:
  Macro(Interpreter& interpreter, const Stmt& body, const std::shared_ptr<Scope>& scope)
      : interpreter_(interpreter), body_(body), scope_(scope) {}
  std::string type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  bool attribute(Runtime& rt, std::string_view name, Value& out) override {
    if (name != "name") return false;
    out = rt.text(body_.name);
    return true;
  }
  Value call(Runtime&, Args& args) override {
    const auto scope = scope_.lock();
    EF_CHECK(scope != nullptr, RequestError, "chat template: macro '{}' is called outside of the block that defines it",
             body_.name);
    return interpreter_.call_macro(body_, scope, args);
  }

 private:
  Interpreter& interpreter_;
  const Stmt& body_;
  std::weak_ptr<Scope> scope_;
};

class Interpreter::Depth {
 public:
  explicit Depth(Interpreter& i) : interpreter_(i) {
    if (++i.depth_ > kMaxEvalDepth) {
      --i.depth_;
      fail<RequestError>("chat template: recursion is more than {} deep", kMaxEvalDepth);
    }
    i.rt_.step();
  }
  ~Depth() { --interpreter_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Interpreter& interpreter_;
};

class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter& i, std::shared_ptr<Scope> parent) : interpreter_(i), saved_(i.scope_) {
    i.scope_ = std::make_shared<Scope>(std::move(parent));
  }
  ~ScopeGuard() { interpreter_.scope_ = std::move(saved_); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Interpreter& interpreter_;
  std::shared_ptr<Scope> saved_;
};

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : values_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  values_.emplace_back(name, std::move(value));
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get()) {
    for (const auto& [key, value] : scope->values_) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

std::string Interpreter::run(const Block& block) {
  std::string out;
  out_ = &out;
  exec_block(block);
  return out;
}

void Interpreter::write(std::string_view text) {
  rt_.charge(text.size());
  EF_CHECK(int64_t(out_->size() + text.size()) <= rt_.limits().output, RequestError,
           "chat template: the result is larger than {} bytes", rt_.limits().output);
  *out_ += text;
}

Interpreter::Flow Interpreter::exec_block(const Block& block) {
  for (const auto& s : block) {
    const Flow flow = exec(*s);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec(const Stmt& s) {
  const Depth depth(*this);
  line_ = s.line;
  switch (s.kind) {
    case StmtKind::kText:
      write(s.text);
      break;
    case StmtKind::kPrint: {
      const Value v = eval(*s.expr);
      write(v.is(Type::kString) ? v.as_string() : rt_.string(v));
      break;
    }
    case StmtKind::kFor:
      return exec_for(s);
    case StmtKind::kIf:
      return exec_if(s);
    case StmtKind::kSet:
    case StmtKind::kSetBlock:
      exec_set(s);
      break;
    case StmtKind::kMacro:
      scope_->set(s.name, Value(std::shared_ptr<Object>(std::make_shared<Macro>(*this, s, scope_))));
      break;
    case StmtKind::kCallBlock:
      exec_call_block(s);
      break;
    case StmtKind::kFilterBlock:
      write(rt_.string(filtered(s.filter.get(), rt_.text(capture(s.body)))));
      break;
    case StmtKind::kWith:
      return exec_with(s);
    case StmtKind::kScope:
      return exec_block(s.body);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec_if(const Stmt& s) {
  for (const auto& [condition, body] : s.branches) {
    if (eval(*condition).truthy()) return exec_block(body);
  }
  return exec_block(s.else_body);
}

Interpreter::Flow Interpreter::exec_for(const Stmt& s) {
  auto items = rt_.iterate(eval(*s.expr));
  if (s.condition) {
    std::vector<Value> kept;
    for (const Value& item : items->items) {
      const ScopeGuard scope(*this, scope_);
      rt_.step();
      assign(*s.target, item);
      if (eval(*s.condition).truthy()) kept.push_back(item);
    }
    items = rt_.list(std::move(kept)).list_ptr();
  }
  EF_CHECK(items->depth + 1 < kMaxValueDepth, RequestError, "chat template: values are nested more than {} deep",
           kMaxValueDepth);
  const auto loop = std::make_shared<Loop>(items);
  for (size_t i = 0; i < items->items.size(); ++i) {
    const ScopeGuard scope(*this, scope_);
    rt_.step();
    loop->move_to(i);
    scope_->set("loop", Value(std::shared_ptr<Object>(loop)));
    assign(*s.target, items->items[i]);
    if (exec_block(s.body) == Flow::kBreak) break;
  }
  if (!items->items.empty()) return Flow::kNormal;
  const ScopeGuard scope(*this, scope_);
  return exec_block(s.else_body);
}

void Interpreter::exec_set(const Stmt& s) {
  if (s.kind == StmtKind::kSet) return assign(*s.target, eval(*s.expr));
  Value text = rt_.text(capture(s.body));
  assign(*s.target, s.filter ? filtered(s.filter.get(), std::move(text)) : std::move(text));
}

void Interpreter::exec_call_block(const Stmt& s) {
  const Value function = eval(*s.expr->a);
  Args args = eval_arguments(*s.expr);
  args.keyword.emplace_back("caller", Value(std::shared_ptr<Object>(std::make_shared<Macro>(*this, s, scope_))));
  write(rt_.string(rt_.call(function, args)));
}

Interpreter::Flow Interpreter::exec_with(const Stmt& s) {
  std::vector<Value> values;
  for (const Parameter& p : s.parameters) values.push_back(eval(*p.value));
  const ScopeGuard scope(*this, scope_);
  for (size_t i = 0; i < values.size(); ++i) scope_->set(s.parameters[i].name, std::move(values[i]));
  return exec_block(s.body);
}

/// The text that a block writes, in a scope of its own.
std::string Interpreter::capture(const Block& block) {
  const ScopeGuard scope(*this, scope_);
  std::string text;
  std::string* const saved = std::exchange(out_, &text);
  try {
    exec_block(block);
  } catch (...) {
    out_ = saved;
    throw;
  }
  out_ = saved;
  return text;
}

void Interpreter::assign(const Expr& target, Value value) {
  if (target.kind == ExprKind::kName) return scope_->set(target.name, std::move(value));
  if (target.kind == ExprKind::kAttribute) {
    const Value object = eval(*target.a);
    auto* ns = object.is(Type::kObject) ? dynamic_cast<Namespace*>(&object.as_object()) : nullptr;
    EF_CHECK(ns != nullptr, RequestError, "chat template: cannot assign attribute on non-namespace object");
    return ns->set(target.name, std::move(value));
  }
  const auto items = rt_.iterate(value);
  EF_CHECK(items->items.size() == target.args.size(), RequestError, "chat template: {} values to unpack, expected {}",
           items->items.size(), target.args.size());
  for (size_t i = 0; i < target.args.size(); ++i) assign(*target.args[i], items->items[i]);
}

Value Interpreter::filtered(const Expr* filter, Value input) {
  const Value* const saved = std::exchange(filter_input_, &input);
  const Value out = eval(*filter);
  filter_input_ = saved;
  return out;
}

Value Interpreter::eval(const Expr& e) {
  const Depth depth(*this);
  switch (e.kind) {
    case ExprKind::kLiteral:
      return e.value;
    case ExprKind::kName:
      return eval_name(e);
    case ExprKind::kList:
      return eval_list(e, ListKind::kList);
    case ExprKind::kTuple:
      return eval_list(e, ListKind::kTuple);
    case ExprKind::kDict:
      return eval_dict(e);
    case ExprKind::kAttribute:
      return rt_.attribute(eval(*e.a), e.name);
    case ExprKind::kItem:
      return eval_item(e);
    case ExprKind::kSlice:
      fail<RequestError>("chat template: several slices in one index are not supported");
    case ExprKind::kCall:
      return eval_call(e);
    case ExprKind::kFilter:
      return eval_filter(e);
    case ExprKind::kTest:
      return eval_test(e);
    case ExprKind::kNot:
      return !eval(*e.a).truthy();
    case ExprKind::kNegative:
      return rt_.negative(eval(*e.a), true);
    case ExprKind::kPositive:
      return rt_.negative(eval(*e.a), false);
    case ExprKind::kAnd: {
      Value left = eval(*e.a);
      return left.truthy() ? eval(*e.b) : left;
    }
    case ExprKind::kOr: {
      Value left = eval(*e.a);
      return left.truthy() ? left : eval(*e.b);
    }
    case ExprKind::kBinary: {
      const Value left = eval(*e.a);
      return rt_.binary(e.name, left, eval(*e.b));
    }
    case ExprKind::kConcat:
      return eval_concat(e);
    case ExprKind::kCompare:
      return eval_compare(e);
    case ExprKind::kIf:
      return eval_if(e);
  }
  return {};
}

Value Interpreter::eval_name(const Expr& e) {
  if (const Value* found = scope_->find(e.name)) return *found;
  if (const Value* found = context_.find(e.name)) return *found;
  Value global = find_global(rt_, e.name);
  return global.is(Type::kUndefined) ? Value::undefined(fmt::format("'{}' is undefined", e.name)) : global;
}

Value Interpreter::eval_list(const Expr& e, ListKind kind) {
  std::vector<Value> items;
  items.reserve(e.args.size());
  for (const auto& arg : e.args) items.push_back(eval(*arg));
  return rt_.list(std::move(items), kind);
}

Value Interpreter::eval_dict(const Expr& e) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i + 1 < e.args.size(); i += 2) {
    const Value key = eval(*e.args[i]);
    rt_.charge(4 * sizeof(Value) + size_t(key.weight()));
    EF_CHECK(dict->set(key, eval(*e.args[i + 1])), RequestError, "chat template: unhashable type: '{}'",
             key.type_name());
  }
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

Value Interpreter::eval_item(const Expr& e) {
  const Value object = eval(*e.a);
  if (e.b->kind != ExprKind::kSlice) return rt_.item(object, eval(*e.b));
  Value bounds[3];
  const Value* present[3] = {nullptr, nullptr, nullptr};
  const Expr* parts[3] = {e.b->a.get(), e.b->b.get(), e.b->c.get()};
  for (int i = 0; i < 3; ++i) {
    if (parts[i] == nullptr) continue;
    bounds[i] = eval(*parts[i]);
    present[i] = &bounds[i];
  }
  return rt_.slice(object, present[0], present[1], present[2]);
}

Args Interpreter::eval_arguments(const Expr& e) {
  Args args;
  args.positional.reserve(e.args.size());
  for (const auto& arg : e.args) args.positional.push_back(eval(*arg));
  for (const auto& [name, arg] : e.keyword) args.keyword.emplace_back(name, eval(*arg));
  return args;
}

Value Interpreter::eval_call(const Expr& e) {
  const Value function = eval(*e.a);
  Args args = eval_arguments(e);
  return rt_.call(function, args);
}

Value Interpreter::eval_filter(const Expr& e) {
  const Value input = e.a ? eval(*e.a) : *filter_input_;
  Args args = eval_arguments(e);
  return rt_.filter(e.name, input, args);
}

bool Interpreter::eval_test(const Expr& e) {
  const Value input = eval(*e.a);
  Args args = eval_arguments(e);
  return rt_.test(e.name, input, args);
}

Value Interpreter::eval_concat(const Expr& e) {
  std::string out;
  for (const auto& arg : e.args) out += rt_.string(eval(*arg));
  return rt_.text(std::move(out));
}

bool Interpreter::eval_compare(const Expr& e) {
  Value left = eval(*e.a);
  for (size_t i = 0; i < e.args.size(); ++i) {
    Value right = eval(*e.args[i]);
    const std::string& op = e.names[i];
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = rt_.equals(left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = rt_.contains(right, left) == (op == "in");
    } else {
      const int order = rt_.order(left, right);
      holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::eval_if(const Expr& e) {
  if (eval(*e.b).truthy()) return eval(*e.a);
  return e.c ? eval(*e.c)
             : Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
}

Value Interpreter::call_macro(const Stmt& s, const std::shared_ptr<Scope>& scope, Args& args) {
  const Depth depth(*this);
  const ScopeGuard guard(*this, scope);
  const size_t n = s.parameters.size();
  std::vector<bool> given(n, false);
  std::vector<Value> extra;
  for (size_t i = 0; i < args.positional.size(); ++i) {
    if (i < n) {
      scope_->set(s.parameters[i].name, args.positional[i]);
      given[i] = true;
    } else {
      extra.push_back(args.positional[i]);
    }
  }
  EF_CHECK(extra.empty() || s.takes_varargs, RequestError,
           "chat template: macro '{}' takes not more than {} argument(s)", s.name, n);
  auto kwargs = std::make_shared<Dict>();
  for (const auto& [name, value] : args.keyword) {
    const auto it =
        std::find_if(s.parameters.begin(), s.parameters.end(), [&](const Parameter& p) { return p.name == name; });
    if (it != s.parameters.end()) {
      const size_t at = size_t(it - s.parameters.begin());
      EF_CHECK(!given[at], RequestError, "chat template: macro '{}' got multiple values for argument '{}'", s.name,
               name);
      scope_->set(it->name, value);
      given[at] = true;
    } else if (name == "caller") {
      scope_->set("caller", value);
    } else {
      EF_CHECK(s.takes_kwargs, RequestError, "chat template: macro '{}' takes no keyword argument '{}'", s.name, name);
      kwargs->set(rt_.text(name), value);
    }
  }
  if (s.takes_varargs) scope_->set("varargs", rt_.list(std::move(extra), ListKind::kTuple));
  if (s.takes_kwargs) scope_->set("kwargs", Value(std::shared_ptr<const Dict>(std::move(kwargs))));
  for (size_t i = 0; i < n; ++i) {
    if (given[i]) continue;
    const Parameter& p = s.parameters[i];
    scope_->set(p.name,
                p.value ? eval(*p.value) : Value::undefined(fmt::format("parameter '{}' was not provided", p.name)));
  }
  return rt_.text(capture(s.body));
}

struct Template::Parsed {
  Block block;
};

Template::Template(std::string_view source) : parsed_(std::make_unique<const Parsed>(Parsed{parse_template(source)})) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

std::string Template::render(const nlohmann::ordered_json& context, const std::tm& now, const Limits& limits) const {
  EF_CHECK(context.is_object(), RequestError, "chat template: the variables must be an object, found {}",
           context.type_name());
  const Value variables = from_json(context);
  Runtime runtime(limits, now);
  Interpreter interpreter(runtime, variables.as_dict());
  try {
    return interpreter.run(parsed_->block);
  } catch (const TemplateRaised&) {
    throw;
  } catch (const StoppedError&) {
    throw;
  } catch (const RequestError& e) {
    throw RequestError(with_line(e.what(), interpreter.line()));
  }
}

}  // namespace ef::jinja
