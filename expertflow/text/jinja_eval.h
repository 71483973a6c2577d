// Walks the parsed template.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "expertflow/text/jinja_ast.h"
#include "expertflow/text/jinja_runtime.h"

namespace ef::jinja {

/// Variables of a loop pass, a macro call or the template. Names point into the parsed template.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) {}
  void set(std::string_view name, Value value);
  const Value* find(std::string_view name) const;

 private:
  std::shared_ptr<Scope> parent_;
  std::vector<std::pair<std::string_view, Value>> values_;
};

class Interpreter {
 public:
  Interpreter(Runtime& runtime, const Dict& context)
      : rt_(runtime), context_(context), scope_(std::make_shared<Scope>(nullptr)) {}

  std::string run(const Block& block);
  /// The line of the statement last begun, for messages.
  int line() const { return line_; }

 private:
  friend class Macro;
  enum class Flow { kNormal, kBreak, kContinue };
  class Depth;
  class ScopeGuard;

  Flow exec_block(const Block& block);
  Flow exec(const Stmt& s);
  Flow exec_if(const Stmt& s);
  Flow exec_for(const Stmt& s);
  void exec_set(const Stmt& s);
  void exec_call_block(const Stmt& s);
  Flow exec_with(const Stmt& s);
  std::string capture(const Block& block);
  void write(std::string_view text);
  void assign(const Expr& target, Value value);
  Value filtered(const Expr* filter, Value input);

  Value eval(const Expr& e);
  Value eval_name(const Expr& e);
  Value eval_list(const Expr& e, ListKind kind);
  Value eval_dict(const Expr& e);
  Value eval_item(const Expr& e);
  Value eval_call(const Expr& e);
  Value eval_filter(const Expr& e);
  bool eval_test(const Expr& e);
  Value eval_concat(const Expr& e);
  bool eval_compare(const Expr& e);
  Value eval_if(const Expr& e);
  Args eval_arguments(const Expr& e);
  Value call_macro(const Stmt& s, const std::shared_ptr<Scope>& scope, Args& args);

  Runtime& rt_;
  const Dict& context_;
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;
  const Value* filter_input_ = nullptr;
  int depth_ = 0;
  int line_ = 0;
};

}  // namespace ef::jinja
