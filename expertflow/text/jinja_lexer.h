// Template text to tokens, with the whitespace rules that Hugging Face sets: trim_blocks and lstrip_blocks.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ef::jinja {

enum class TokenKind {
  kText,  // literal output
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInt,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  std::string text;  // strings: the decoded value; operators: their spelling
  int line;
};

/// RequestError with the line for text that is no template. The result ends with a kEnd token.
std::vector<Token> tokenize(std::string_view source);

}  // namespace ef::jinja
