#include "expertflow/text/jinja_parser_base.h"

#include <algorithm>
#include <charconv>

#include "expertflow/base/errors.h"

namespace ef::jinja {
namespace {

constexpr int kMaxNesting = 100;  // brackets and blocks within each other
constexpr int kMaxHeight = 400;   // operators on top of each other: a + b + c + ...

int height_of(const ExprPtr& e) { return e ? e->height : 0; }

bool starts_test_argument(const Token& t) {
  switch (t.kind) {
    case TokenKind::kName: {
      for (const char* word : {"else", "or", "and", "if", "in", "not", "is"}) {
        if (t.text == word) return false;
      }
      return true;
    }
    case TokenKind::kString:
    case TokenKind::kInt:
    case TokenKind::kFloat:
      return true;
    case TokenKind::kOperator:
      return t.text == "(" || t.text == "[" || t.text == "{";
    default:
      return false;
  }
}

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ > kMaxNesting) {
    --parser_.depth_;
    parser_.error(fmt::format("nested more than {} deep", kMaxNesting));
  }
}

void ExpressionParser::error(const std::string& what) const {
  fail<RequestError>("chat template, line {}: {}", current().line, what);
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_operator(std::string_view op) {
  if (!at_operator(op)) return false;
  next();
  return true;
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) error(fmt::format("expected '{}', found '{}'", name, current().text));
}

void ExpressionParser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) error(fmt::format("expected '{}', found '{}'", op, current().text));
}

std::string ExpressionParser::expect(TokenKind kind, std::string_view what) {
  if (current().kind != kind) error(fmt::format("expected '{}', found '{}'", what, current().text));
  std::string text = current().text;
  next();
  return text;
}

ExprPtr ExpressionParser::make(ExprKind kind) const {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = current().line;
  return e;
}

ExprPtr ExpressionParser::finish(ExprPtr e) const {
  int height = std::max({height_of(e->a), height_of(e->b), height_of(e->c)});
  for (const auto& arg : e->args) height = std::max(height, height_of(arg));
  for (const auto& [name, arg] : e->keyword) height = std::max(height, height_of(arg));
  e->height = height + 1;
  if (e->height > kMaxHeight) error(fmt::format("an expression is more than {} operators deep", kMaxHeight));
  return e;
}

ExprPtr ExpressionParser::binary(ExprKind kind, std::string name, ExprPtr a, ExprPtr b) const {
  ExprPtr e = make(kind);
  e->line = a->line;
  e->name = std::move(name);
  e->a = std::move(a);
  e->b = std::move(b);
  return finish(std::move(e));
}

ExprPtr ExpressionParser::parse_expression(bool with_condition) {
  const Nesting nesting(*this);
  ExprPtr value = parse_or();
  while (with_condition && skip_name("if")) {
    ExprPtr e = make(ExprKind::kIf);
    e->a = std::move(value);
    e->b = parse_or();
    if (skip_name("else")) e->c = parse_expression();
    value = finish(std::move(e));
  }
  return value;
}

ExprPtr ExpressionParser::parse_tuple(bool with_condition) {
  ExprPtr first = parse_expression(with_condition);
  if (!at_operator(",")) return first;
  ExprPtr tuple = make(ExprKind::kTuple);
  tuple->args.push_back(std::move(first));
  while (skip_operator(",")) {
    const TokenKind kind = current().kind;
    if (kind == TokenKind::kPrintEnd || kind == TokenKind::kBlockEnd || at_operator(")") || at_operator("=")) break;
    tuple->args.push_back(parse_expression(with_condition));
  }
  return finish(std::move(tuple));
}

ExprPtr ExpressionParser::parse_target(bool with_attribute) {
  const Nesting nesting(*this);
  const auto one = [&]() -> ExprPtr {
    if (skip_operator("(")) {
      ExprPtr inner = parse_target(false);
      expect_operator(")");
      return inner;
    }
    ExprPtr e = make(ExprKind::kName);
    e->name = expect(TokenKind::kName, "a name");
    for (const char* word : {"true", "false", "none", "True", "False", "None"}) {
      if (e->name == word) error(fmt::format("cannot assign to '{}'", word));
    }
    if (with_attribute && skip_operator(".")) {
      ExprPtr attribute = make(ExprKind::kAttribute);
      attribute->a = std::move(e);
      attribute->name = expect(TokenKind::kName, "a name");
      return finish(std::move(attribute));
    }
    return e;
  };
  ExprPtr first = one();
  if (!at_operator(",")) return first;
  ExprPtr tuple = make(ExprKind::kTuple);
  tuple->args.push_back(std::move(first));
  while (skip_operator(",")) {
    if (current().kind != TokenKind::kName && !at_operator("(")) break;
    if (at_name("in")) break;
    tuple->args.push_back(one());
  }
  return finish(std::move(tuple));
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (skip_name("or")) left = binary(ExprKind::kOr, "or", std::move(left), parse_and());
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (skip_name("and")) left = binary(ExprKind::kAnd, "and", std::move(left), parse_not());
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Nesting nesting(*this);
  ExprPtr e = make(ExprKind::kNot);
  next();
  e->a = parse_not();
  return finish(std::move(e));
}

ExprPtr ExpressionParser::parse_compare() {
  ExprPtr left = parse_sum();
  ExprPtr e;
  for (;;) {
    std::string op;
    if (current().kind == TokenKind::kOperator) {
      for (const char* candidate : {"==", "!=", "<", "<=", ">", ">="}) {
        if (current().text == candidate) op = candidate;
      }
    } else if (at_name("in")) {
      op = "in";
    } else if (at_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
      op = "not in";
      next();
    }
    if (op.empty()) break;
    if (!e) e = make(ExprKind::kCompare);
    next();
    e->names.push_back(op);
    e->args.push_back(parse_sum());
  }
  if (!e) return left;
  e->a = std::move(left);
  return finish(std::move(e));
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_operator("+") || at_operator("-")) {
    std::string op = current().text;
    next();
    left = binary(ExprKind::kBinary, std::move(op), std::move(left), parse_concat());
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr left = parse_product();
  if (!at_operator("~")) return left;
  ExprPtr e = make(ExprKind::kConcat);
  e->args.push_back(std::move(left));
  while (skip_operator("~")) e->args.push_back(parse_product());
  return finish(std::move(e));
}

ExprPtr ExpressionParser::parse_product() {
  ExprPtr left = parse_power();
  while (at_operator("*") || at_operator("/") || at_operator("//") || at_operator("%")) {
    std::string op = current().text;
    next();
    left = binary(ExprKind::kBinary, std::move(op), std::move(left), parse_power());
  }
  return left;
}

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary();
  while (skip_operator("**")) left = binary(ExprKind::kBinary, "**", std::move(left), parse_unary());
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  ExprPtr e;
  if (at_operator("-") || at_operator("+")) {
    e = make(at_operator("-") ? ExprKind::kNegative : ExprKind::kPositive);
    next();
    e->a = parse_unary(false);
    e = finish(std::move(e));
  } else {
    e = parse_primary();
  }
  e = parse_postfix(std::move(e));
  return with_filters ? parse_filters_and_tests(std::move(e)) : std::move(e);
}

ExprPtr ExpressionParser::parse_primary() {
  switch (current().kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kString:
      return parse_string();
    case TokenKind::kInt:
    case TokenKind::kFloat:
      return parse_number();
    case TokenKind::kOperator:
      if (at_operator("(")) return parse_parenthesis();
      if (at_operator("[")) return parse_list();
      if (at_operator("{")) return parse_dict();
      break;
    default:
      break;
  }
  if (current().text.empty()) error("an expression was expected");
  error(fmt::format("unexpected '{}'", current().text));
}

ExprPtr ExpressionParser::parse_name() {
  const std::string& name = current().text;
  ExprPtr e = make(ExprKind::kLiteral);
  if (name == "true" || name == "True") {
    e->value = Value(true);
  } else if (name == "false" || name == "False") {
    e->value = Value(false);
  } else if (name == "none" || name == "None") {
    e->value = Value::none();
  } else {
    e->kind = ExprKind::kName;
    e->name = name;
    saw_varargs_ = saw_varargs_ || name == "varargs";
    saw_kwargs_ = saw_kwargs_ || name == "kwargs";
  }
  next();
  return e;
}

ExprPtr ExpressionParser::parse_number() {
  ExprPtr e = make(ExprKind::kLiteral);
  const std::string& text = current().text;
  if (current().kind == TokenKind::kFloat) {
    double d = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), d);
    if (result.ec != std::errc()) error(fmt::format("bad number '{}'", text));
    e->value = Value(d);
  } else {
    const char kind = text.size() > 1 ? char(text[1] | 0x20) : '0';
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    int64_t i = 0;
    const char* begin = text.data() + (base == 10 ? 0 : 2);
    const auto result = std::from_chars(begin, text.data() + text.size(), i, base);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size())
      error(fmt::format("bad number '{}'", text));
    e->value = Value(i);
  }
  next();
  return e;
}

ExprPtr ExpressionParser::parse_string() {
  ExprPtr e = make(ExprKind::kLiteral);
  std::string text;
  for (; current().kind == TokenKind::kString; next()) text += current().text;
  e->value = Value(std::move(text));
  return e;
}

ExprPtr ExpressionParser::parse_parenthesis() {
  ExprPtr empty = make(ExprKind::kTuple);
  next();
  if (skip_operator(")")) return empty;
  ExprPtr e = parse_tuple();
  expect_operator(")");
  return e;
}

ExprPtr ExpressionParser::parse_list() {
  ExprPtr e = make(ExprKind::kList);
  next();
  while (!at_operator("]")) {
    if (!e->args.empty()) expect_operator(",");
    if (at_operator("]")) break;
    e->args.push_back(parse_expression());
  }
  next();
  return finish(std::move(e));
}

ExprPtr ExpressionParser::parse_dict() {
  ExprPtr e = make(ExprKind::kDict);
  next();
  while (!at_operator("}")) {
    if (!e->args.empty()) expect_operator(",");
    if (at_operator("}")) break;
    e->args.push_back(parse_expression());
    expect_operator(":");
    e->args.push_back(parse_expression());
  }
  next();
  return finish(std::move(e));
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr e) {
  for (;;) {
    if (at_operator(".")) {
      ExprPtr access = make(ExprKind::kAttribute);
      next();
      access->a = std::move(e);
      if (current().kind == TokenKind::kInt) {
        access->kind = ExprKind::kItem;
        access->b = parse_number();
      } else {
        access->name = expect(TokenKind::kName, "a name");
      }
      e = finish(std::move(access));
    } else if (at_operator("[")) {
      e = parse_index(std::move(e));
    } else if (at_operator("(")) {
      ExprPtr call = make(ExprKind::kCall);
      call->a = std::move(e);
      parse_arguments(*call);
      e = finish(std::move(call));
    } else {
      return e;
    }
  }
}

ExprPtr ExpressionParser::parse_index(ExprPtr e) {
  ExprPtr item = make(ExprKind::kItem);
  next();
  item->a = std::move(e);
  item->b = parse_one_index();
  if (at_operator(",")) {
    ExprPtr tuple = make(ExprKind::kTuple);
    tuple->args.push_back(std::move(item->b));
    while (skip_operator(",")) {
      if (at_operator("]")) break;
      tuple->args.push_back(parse_one_index());
    }
    item->b = finish(std::move(tuple));
  }
  expect_operator("]");
  return finish(std::move(item));
}

ExprPtr ExpressionParser::parse_one_index() {
  ExprPtr slice = make(ExprKind::kSlice);
  if (!at_operator(":")) {
    slice->a = parse_expression();
    if (!at_operator(":")) return std::move(slice->a);
  }
  next();
  const auto ends = [&] { return at_operator("]") || at_operator(","); };
  if (!ends() && !at_operator(":")) slice->b = parse_expression();
  if (skip_operator(":") && !ends()) slice->c = parse_expression();
  return finish(std::move(slice));
}

void ExpressionParser::parse_arguments(Expr& call) {
  expect_operator("(");
  bool first = true;
  while (!at_operator(")")) {
    if (!first) expect_operator(",");
    first = false;
    if (at_operator(")")) break;
    if (at_operator("*") || at_operator("**")) error("'*' and '**' arguments are not supported");
    if (current().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator && ahead().text == "=") {
      std::string name = current().text;
      next();
      next();
      call.keyword.emplace_back(std::move(name), parse_expression());
    } else {
      if (!call.keyword.empty()) error("a positional argument follows a keyword argument");
      call.args.push_back(parse_expression());
    }
  }
  next();
}

ExprPtr ExpressionParser::parse_filters_and_tests(ExprPtr e) {
  for (;;) {
    if (at_operator("|")) {
      next();
      e = parse_filter(std::move(e));
    } else if (at_name("is")) {
      e = parse_test(std::move(e));
    } else if (at_operator("(")) {
      ExprPtr call = make(ExprKind::kCall);
      call->a = std::move(e);
      parse_arguments(*call);
      e = finish(std::move(call));
    } else {
      return e;
    }
  }
}

ExprPtr ExpressionParser::parse_filters(ExprPtr input, bool bare) {
  ExprPtr e = std::move(input);
  if (bare) e = parse_filter(std::move(e));
  while (skip_operator("|")) e = parse_filter(std::move(e));
  return e;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = expect(TokenKind::kName, "a name");
  while (skip_operator(".")) name += "." + expect(TokenKind::kName, "a name");
  return name;
}

ExprPtr ExpressionParser::parse_filter(ExprPtr e) {
  ExprPtr filter = make(ExprKind::kFilter);
  filter->a = std::move(e);
  filter->name = parse_dotted_name();
  if (at_operator("(")) parse_arguments(*filter);
  return finish(std::move(filter));
}

ExprPtr ExpressionParser::parse_test(ExprPtr e) {
  ExprPtr test = make(ExprKind::kTest);
  next();
  const bool negated = skip_name("not");
  test->a = std::move(e);
  test->name = parse_dotted_name();
  if (at_operator("(")) {
    parse_arguments(*test);
  } else if (starts_test_argument(current())) {
    test->args.push_back(parse_postfix(parse_primary()));
  }
  test = finish(std::move(test));
  if (!negated) return test;
  ExprPtr e_not = make(ExprKind::kNot);
  e_not->a = std::move(test);
  return finish(std::move(e_not));
}

}  // namespace ef::jinja
