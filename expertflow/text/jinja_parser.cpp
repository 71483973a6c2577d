#include "expertflow/text/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "expertflow/base/errors.h"
#include "expertflow/text/jinja_parser_base.h"

namespace ef::jinja {
namespace {

class Parser final : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Block run() {
    Block block = parse_block({});
    return block;
  }

 private:
  using StmtPtr = std::unique_ptr<Stmt>;

  StmtPtr make(StmtKind kind) const {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = current().line;
    return s;
  }

  /// Statements until one of the end tags, whose name is left as the current token.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    Block block;
    for (;;) {
      switch (current().kind) {
        case TokenKind::kText: {
          StmtPtr s = make(StmtKind::kText);
          s->text = current().text;
          block.push_back(std::move(s));
          next();
          break;
        }
        case TokenKind::kPrintBegin: {
          next();
          StmtPtr s = make(StmtKind::kPrint);
          s->expr = parse_tuple();
          expect(TokenKind::kPrintEnd, "}}");
          block.push_back(std::move(s));
          break;
        }
        case TokenKind::kBlockBegin:
          next();
          if (is_one_of(ends)) return block;
          block.push_back(parse_statement());
          break;
        default:
          if (ends.size() > 0) error(fmt::format("the template ends, expected '{}'", *(ends.end() - 1)));
          return block;
      }
    }
  }

  bool is_one_of(std::initializer_list<std::string_view> names) const {
    return std::any_of(names.begin(), names.end(), [&](std::string_view n) { return at_name(n); });
  }

  void end_tag() { expect(TokenKind::kBlockEnd, "%}"); }

  Block parse_body(std::string_view end) {
    end_tag();
    Block body = parse_block({end});
    next();
    return body;
  }

  StmtPtr parse_statement() {
    if (current().kind != TokenKind::kName) error("a tag name was expected");
    const std::string name = current().text;
    StmtPtr s;
    if (name == "for") {
      s = parse_for();
    } else if (name == "if") {
      s = parse_if();
    } else if (name == "set") {
      s = parse_set();
    } else if (name == "macro") {
      s = parse_macro();
    } else if (name == "call") {
      s = parse_call_block();
    } else if (name == "filter") {
      s = parse_filter_block();
    } else if (name == "with") {
      s = parse_with();
    } else if (name == "generation") {
      s = make(StmtKind::kScope);
      next();
      s->body = parse_body("endgeneration");
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) error(fmt::format("'{}' outside of a loop", name));
      s = make(name == "break" ? StmtKind::kBreak : StmtKind::kContinue);
      next();
    } else {
      error(fmt::format("the tag '{}' is not supported", name));
    }
    end_tag();
    return s;
  }

  StmtPtr parse_for() {
    StmtPtr s = make(StmtKind::kFor);
    next();
    s->target = parse_target();
    expect_name("in");
    s->expr = parse_tuple(false);
    if (at_name("recursive")) error("'for ... recursive' is not supported");
    if (skip_name("if")) s->condition = parse_expression();
    end_tag();
    ++loops_;
    s->body = parse_block({"else", "endfor"});
    --loops_;
    if (skip_name("else")) {
      end_tag();
      s->else_body = parse_block({"endfor"});
    }
    next();
    return s;
  }

  StmtPtr parse_if() {
    StmtPtr s = make(StmtKind::kIf);
    do {
      next();
      ExprPtr condition = parse_tuple(false);
      end_tag();
      s->branches.emplace_back(std::move(condition), parse_block({"elif", "else", "endif"}));
    } while (at_name("elif"));
    if (skip_name("else")) {
      end_tag();
      s->else_body = parse_block({"endif"});
    }
    next();
    return s;
  }

  StmtPtr parse_set() {
    StmtPtr s = make(StmtKind::kSet);
    next();
    s->target = parse_target(true);
    if (skip_operator("=")) {
      s->expr = parse_tuple();
      return s;
    }
    s->kind = StmtKind::kSetBlock;
    s->filter = parse_filters(nullptr);
    s->body = parse_body("endset");
    return s;
  }

  std::vector<Parameter> parse_parameters() {
    std::vector<Parameter> parameters;
    expect_operator("(");
    while (!at_operator(")")) {
      if (!parameters.empty()) expect_operator(",");
      if (at_operator(")")) break;
      Parameter p;
      p.name = expect(TokenKind::kName, "a name");
      if (skip_operator("=")) {
        p.value = parse_expression();
      } else if (!parameters.empty() && parameters.back().value) {
        error("a parameter without a default follows one with a default");
      }
      parameters.push_back(std::move(p));
    }
    next();
    return parameters;
  }

  /// break and continue do not reach out of a macro.
  Block parse_closed_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block body = parse_body(end);
    loops_ = loops;
    return body;
  }

  StmtPtr parse_macro() {
    StmtPtr s = make(StmtKind::kMacro);
    next();
    s->name = expect(TokenKind::kName, "a name");
    s->parameters = parse_parameters();
    const bool varargs = std::exchange(saw_varargs_, false);
    const bool kwargs = std::exchange(saw_kwargs_, false);
    s->body = parse_closed_body("endmacro");
    s->takes_varargs = std::exchange(saw_varargs_, varargs);
    s->takes_kwargs = std::exchange(saw_kwargs_, kwargs);
    return s;
  }

  StmtPtr parse_call_block() {
    StmtPtr s = make(StmtKind::kCallBlock);
    s->name = "caller";
    next();
    if (at_operator("(")) s->parameters = parse_parameters();
    s->expr = parse_expression();
    if (s->expr->kind != ExprKind::kCall) error("'call' needs a call");
    s->body = parse_closed_body("endcall");
    return s;
  }

  StmtPtr parse_filter_block() {
    StmtPtr s = make(StmtKind::kFilterBlock);
    next();
    s->filter = parse_filters(nullptr, true);
    s->body = parse_body("endfilter");
    return s;
  }

  StmtPtr parse_with() {
    StmtPtr s = make(StmtKind::kWith);
    next();
    while (current().kind != TokenKind::kBlockEnd) {
      if (!s->parameters.empty()) expect_operator(",");
      Parameter p;
      p.name = expect(TokenKind::kName, "a name");
      expect_operator("=");
      p.value = parse_expression();
      s->parameters.push_back(std::move(p));
    }
    s->body = parse_body("endwith");
    return s;
  }

  int loops_ = 0;
};

}  // namespace

Block parse_template(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace ef::jinja
