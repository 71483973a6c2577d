#include "expertflow/text/tokenizer_pattern.h"

namespace ef {

Pattern::Pattern(const fields::Node& node) {
  if (node.value.is_string()) {
    literal_ = node.value.get<std::string>();
    return;
  }
  const fields::Node literal = fields::member(node, "String");
  const fields::Node regex = fields::member(node, "Regex");
  if (literal.value.is_null() == regex.value.is_null()) fields::wrong(node, "an object with one of String and Regex");
  if (regex.value.is_null()) {
    literal_ = fields::string_of(literal);
  } else {
    regex_.emplace(fields::string_of(regex), regex.where);
  }
}

std::vector<Regex::Match> Pattern::find_all(std::string_view text) const {
  if (regex_) return regex_->find_all(text);
  std::vector<Regex::Match> matches;
  if (literal_.empty()) return matches;
  for (size_t i = text.find(literal_); i != std::string_view::npos; i = text.find(literal_, i + literal_.size())) {
    matches.emplace_back(i, i + literal_.size());
  }
  return matches;
}

std::string Pattern::replace(std::string_view text, std::string_view content) const {
  std::string out;
  size_t done = 0;
  for (const auto& [begin, end] : find_all(text)) {
    out.append(text, done, begin - done);
    out += content;
    done = end;
  }
  out.append(text, done);
  return out;
}

}  // namespace ef
