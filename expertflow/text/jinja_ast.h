// The parsed template. One node type for expressions and one for statements: what a node uses is told by its kind.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "expertflow/text/jinja_value.h"

namespace ef::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kLiteral,    // value
  kName,       // name
  kList,       // args
  kTuple,      // args
  kDict,       // args: key, value, key, value, ...
  kAttribute,  // a.name
  kItem,       // a[b]
  kSlice,      // [a:b:c] as an index, each may be null
  kCall,       // a(args, keyword)
  kFilter,     // a|name(args, keyword)
  kTest,       // a is name(args, keyword)
  kNot,        // not a
  kNegative,   // -a
  kPositive,   // +a
  kAnd,
  kOr,
  kBinary,   // a name b, arithmetic
  kConcat,   // args joined as text
  kCompare,  // a, then names[i] args[i]
  kIf,       // a if b else c (c may be null)
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int height = 1;
  std::string name;
  Value value;
  ExprPtr a, b, c;
  std::vector<ExprPtr> args;
  std::vector<std::string> names;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

enum class StmtKind : uint8_t {
  kText,         // text
  kPrint,        // expr
  kFor,          // for target in expr if condition: body, else_body
  kIf,           // branches, else_body
  kSet,          // target = expr
  kSetBlock,     // target = rendered body, through filter
  kMacro,        // name(parameters): body
  kCallBlock,    // expr is a call; parameters and body make caller()
  kFilterBlock,  // filter applied to body
  kWith,         // parameters as (name, value): body
  kScope,        // body (generation)
  kBreak,
  kContinue,
};

struct Parameter {
  std::string name;
  ExprPtr value;  // null: no default
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  std::string text;
  std::string name;
  ExprPtr target, expr, condition;
  ExprPtr filter;  // innermost `a` is null: stands for the body's text
  std::vector<std::pair<ExprPtr, Block>> branches;
  Block body, else_body;
  std::vector<Parameter> parameters;
  bool takes_varargs = false, takes_kwargs = false;
};

}  // namespace ef::jinja
