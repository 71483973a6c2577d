// The expression half of the parser.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/text/jinja_ast.h"
#include "expertflow/text/jinja_lexer.h"

namespace ef::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  /// Bounds the recursion of the parser.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  [[noreturn]] void error(const std::string& what) const;

  const Token& current() const { return tokens_[pos_]; }
  const Token& ahead() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  void next() {
    if (pos_ + 1 < tokens_.size()) ++pos_;
  }
  bool at_name(std::string_view name) const { return current().kind == TokenKind::kName && current().text == name; }
  bool at_operator(std::string_view op) const { return current().kind == TokenKind::kOperator && current().text == op; }
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view op);
  void expect_name(std::string_view name);
  void expect_operator(std::string_view op);
  std::string expect(TokenKind kind, std::string_view what);

  ExprPtr parse_expression(bool with_condition = true);
  /// One expression, or several with commas as a tuple.
  ExprPtr parse_tuple(bool with_condition = true);
  /// What `for` and `set` assign to: names, tuples of names, and (set alone) namespace attributes.
  ExprPtr parse_target(bool with_attribute = false);
  /// Filters applied to `input`. `bare`: the first filter stands without its '|'.
  ExprPtr parse_filters(ExprPtr input, bool bare = false);

  /// Set when these names are read: a macro that reads them takes any arguments.
  bool saw_varargs_ = false;
  bool saw_kwargs_ = false;

 private:
  ExprPtr make(ExprKind kind) const;
  /// Adds up the height of the tree, refuses trees too high to walk.
  ExprPtr finish(ExprPtr e) const;
  ExprPtr binary(ExprKind kind, std::string name, ExprPtr a, ExprPtr b) const;

  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters = true);
  ExprPtr parse_primary();
  ExprPtr parse_name();
  ExprPtr parse_number();
  ExprPtr parse_string();
  ExprPtr parse_parenthesis();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr e);
  ExprPtr parse_index(ExprPtr e);
  ExprPtr parse_one_index();
  ExprPtr parse_filters_and_tests(ExprPtr e);
  ExprPtr parse_filter(ExprPtr e);
  ExprPtr parse_test(ExprPtr e);
  void parse_arguments(Expr& call);
  std::string parse_dotted_name();

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int depth_ = 0;
};

}  // namespace ef::jinja
