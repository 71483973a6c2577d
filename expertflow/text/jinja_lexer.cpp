#include "expertflow/text/jinja_lexer.h"

#include <algorithm>
#include <array>

#include "expertflow/base/errors.h"
#include "expertflow/text/jinja_unicode.h"

namespace ef::jinja {
namespace {

constexpr std::array<std::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool is_name_start(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || uint8_t(c) >= 0x80;
}
bool is_decimal(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) { return is_name_start(c) || is_decimal(c); }

/// Line ends become \n, and one line end at the end of the template is dropped.
std::string normalise(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalise(source)) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) text_then_tag();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(const std::string& what) const {
    fail<RequestError>("chat template, line {}: {}", line_, what);
  }

  bool at(std::string_view s, size_t pos) const { return std::string_view(source_).substr(pos, s.size()) == s; }
  bool at(std::string_view s) const { return at(s, pos_); }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void advance_to(size_t pos) {
    line_ += int(std::count(source_.begin() + std::ptrdiff_t(pos_), source_.begin() + std::ptrdiff_t(pos), '\n'));
    pos_ = pos;
  }

  size_t skip_space(size_t pos) const {
    while (pos < source_.size() && is_space(code_point(source_, pos))) pos += char_length(source_, pos);
    return pos;
  }

  size_t find_tag(size_t pos) const {
    for (;; ++pos) {
      pos = source_.find('{', pos);
      if (pos == std::string::npos || pos + 1 >= source_.size()) return source_.size();
      const char c = source_[pos + 1];
      if (c == '{' || c == '%' || c == '#') return pos;
    }
  }

  /// The text before a tag, less what the tag's sign or lstrip_blocks takes away.
  void add_text(size_t end, char sign, bool is_print) {
    std::string_view text = std::string_view(source_).substr(pos_, end - pos_);
    if (sign == '-') {
      text = strip(text, false, true);
    } else if (sign != '+' && !is_print) {
      const size_t newline = text.rfind('\n');
      const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
      const bool line_start = begin > 0 || pos_ == 0 || source_[pos_ - 1] == '\n';
      if (line_start && strip(text.substr(begin), true, false).empty()) text = text.substr(0, begin);
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
    advance_to(end);
  }

  char sign_after(size_t pos) const {
    return pos < source_.size() && (source_[pos] == '-' || source_[pos] == '+') ? source_[pos] : ' ';
  }

  void text_then_tag() {
    const size_t tag = find_tag(pos_);
    if (tag == source_.size()) {
      add(TokenKind::kText, source_.substr(pos_));
      advance_to(tag);
      return;
    }
    const char sign = sign_after(tag + 2);
    const bool is_print = source_[tag + 1] == '{';
    add_text(tag, sign, is_print);
    const size_t inside = tag + 2 + (sign == ' ' ? 0 : 1);
    if (source_[tag + 1] == '#') return comment(inside);
    if (!is_print && raw(inside)) return;
    add(is_print ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, "");
    advance_to(inside);
    expression(is_print ? "}}" : "%}", is_print ? TokenKind::kPrintEnd : TokenKind::kBlockEnd);
  }

  /// Skips the end of a tag at `pos`, with the whitespace it takes away. Jinja drops no line end after `raw`.
  void close_tag(size_t pos, bool trims_line) {
    size_t next = pos;
    if (source_[pos] == '-') {
      next = skip_space(pos + 3);
    } else if (source_[pos] == '+') {
      next = pos + 3;
    } else {
      next = pos + 2;
      if (trims_line && next < source_.size() && source_[next] == '\n') ++next;
    }
    advance_to(next);
  }

  void comment(size_t pos) {
    size_t end = source_.find("#}", pos);
    if (end == std::string::npos) error("a comment has no end '#}'");
    if (end > pos && (source_[end - 1] == '-' || source_[end - 1] == '+')) --end;
    close_tag(end, true);
  }

  /// Position of the end of tag `name` if it stands at pos (after the sign), else npos.
  size_t match_tag(std::string_view name, size_t pos) const {
    pos = skip_space(pos);
    if (!at(name, pos)) return std::string::npos;
    pos = skip_space(pos + name.size());
    return at("%}", pos) || at("-%}", pos) || at("+%}", pos) ? pos : std::string::npos;
  }

  bool raw(size_t inside) {
    const size_t open_end = match_tag("raw", inside);
    if (open_end == std::string::npos || source_[open_end] == '+') return false;
    close_tag(open_end, false);
    for (size_t tag = pos_; (tag = source_.find("{%", tag)) != std::string::npos; tag += 2) {
      const char sign = sign_after(tag + 2);
      const size_t end = match_tag("endraw", tag + 2 + (sign == ' ' ? 0 : 1));
      if (end == std::string::npos) continue;
      add_text(tag, sign, false);
      close_tag(end, true);
      return true;
    }
    error("'raw' has no 'endraw'");
  }

  void expression(std::string_view end, TokenKind end_kind) {
    std::vector<char> open;
    for (;;) {
      advance_to(skip_space(pos_));
      if (pos_ >= source_.size()) error(fmt::format("a tag has no end '{}'", end));
      if (open.empty() && at_end(end, end_kind)) return;
      const char c = source_[pos_];
      if (is_name_start(c)) {
        name();
      } else if (is_decimal(c)) {
        number();
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        operator_token(open);
      }
    }
  }

  bool at_end(std::string_view end, TokenKind kind) {
    const bool block = kind == TokenKind::kBlockEnd;
    const bool sign = source_[pos_] == '-' || (block && source_[pos_] == '+');
    if (!at(end, pos_ + (sign ? 1 : 0))) return false;
    add(kind, "");
    close_tag(pos_, block);
    return true;
  }

  void name() {
    size_t end = pos_;
    while (end < source_.size() && is_name_char(source_[end])) ++end;
    add(TokenKind::kName, source_.substr(pos_, end - pos_));
    advance_to(end);
  }

  void operator_token(std::vector<char>& open) {
    for (std::string_view op : kOperators) {
      if (!at(op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{') {
        open.push_back(c == '(' ? ')' : char(c + 2));
      } else if (c == ')' || c == ']' || c == '}') {
        if (open.empty()) error(fmt::format("unexpected '{}'", c));
        if (open.back() != c) error(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
        open.pop_back();
      }
      add(TokenKind::kOperator, std::string(op));
      advance_to(pos_ + op.size());
      return;
    }
    error(fmt::format("unexpected character '{}'", source_.substr(pos_, char_length(source_, pos_))));
  }

  /// Digits with single underscores between them, as Python allows.
  size_t digits(size_t pos) const {
    while (pos < source_.size() && (is_decimal(source_[pos]) ||
                                    (source_[pos] == '_' && pos + 1 < source_.size() && is_decimal(source_[pos + 1]))))
      ++pos;
    return pos;
  }

  void number() {
    size_t end = digits(pos_);
    bool is_float = false;
    if (source_[pos_] == '0' && pos_ + 1 < source_.size() &&
        std::string_view("xXoObB").find(source_[pos_ + 1]) != std::string_view::npos) {
      end = pos_ + 2;
      while (end < source_.size() && is_name_char(source_[end])) ++end;
    } else {
      const bool after_dot =
          !tokens_.empty() && tokens_.back().kind == TokenKind::kOperator && tokens_.back().text == ".";
      if (!after_dot && end + 1 < source_.size() && source_[end] == '.' && is_decimal(source_[end + 1])) {
        end = digits(end + 1);
        is_float = true;
      }
      size_t exponent = end;
      if (!after_dot && exponent < source_.size() && (source_[exponent] == 'e' || source_[exponent] == 'E')) {
        ++exponent;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && is_decimal(source_[exponent])) {
          end = digits(exponent);
          is_float = true;
        }
      }
    }
    std::string text = source_.substr(pos_, end - pos_);
    std::erase(text, '_');
    add(is_float ? TokenKind::kFloat : TokenKind::kInt, std::move(text));
    advance_to(end);
  }

  int32_t escape_number(size_t& pos, size_t width, int base) {
    int32_t value = 0;
    size_t used = 0;
    const size_t begin = pos;
    for (; used < width && pos < source_.size(); ++used, ++pos) {
      const char c = source_[pos];
      const int digit = is_decimal(c)            ? c - '0'
                        : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                        : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                                 : 99;
      if (digit >= base) break;
      value = value * base + digit;
      if (value > 0x10FFFF) break;
    }
    if ((base == 16 && used != width) || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      error(fmt::format("bad escape in a string: '\\{}'", source_.substr(begin - 1, used + 1)));
    }
    return value;
  }

  void escape(size_t& pos, std::string& out) {
    const char c = source_[pos++];
    switch (c) {
      case 'n':
        out += '\n';
        return;
      case 't':
        out += '\t';
        return;
      case 'r':
        out += '\r';
        return;
      case 'a':
        out += '\a';
        return;
      case 'b':
        out += '\b';
        return;
      case 'f':
        out += '\f';
        return;
      case 'v':
        out += '\v';
        return;
      case '\n':
        return;
      case '\\':
      case '\'':
      case '"':
        out += c;
        return;
      case 'x':
        append_utf8(out, escape_number(pos, 2, 16));
        return;
      case 'u':
        append_utf8(out, escape_number(pos, 4, 16));
        return;
      case 'U':
        append_utf8(out, escape_number(pos, 8, 16));
        return;
      default:
        break;
    }
    if (c >= '0' && c <= '7') {
      --pos;
      append_utf8(out, escape_number(pos, 3, 8));
    } else {
      out += '\\';
      out += c;
    }
  }

  void string(char quote) {
    std::string out;
    size_t pos = pos_ + 1;
    while (pos < source_.size() && source_[pos] != quote) {
      if (source_[pos] != '\\') {
        out += source_[pos++];
      } else if (++pos < source_.size()) {
        escape(pos, out);
      }
    }
    if (pos >= source_.size()) error("a string has no end");
    add(TokenKind::kString, std::move(out));
    advance_to(pos + 1);
  }

  std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace ef::jinja
