#include "expertflow/text/tokenizer_pattern.h"

#include <algorithm>

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

std::vector<Regex::Match> Pattern::find_all(std::string_view text, const StopCheck& stop) const {
  if (regex_) return regex_->find_all(text, stop);
  std::vector<Regex::Match> matches;
  if (literal_.empty()) return matches;
  for (size_t i = text.find(literal_); i != std::string_view::npos; i = text.find(literal_, i + literal_.size())) {
    matches.emplace_back(i, i + literal_.size());
  }
  return matches;
}

std::string Pattern::replace(std::string_view text, std::string_view content, const StopCheck& stop) const {
  std::string out;
  size_t done = 0;
  for (const auto& [begin, end] : find_all(text, stop)) {
    out.append(text, done, begin - done);
    out += content;
    done = end;
  }
  out.append(text, done);
  return out;
}

std::optional<size_t> Pattern::most_shrinking(std::string_view content) const {
  if (regex_ || (content.empty() && !literal_.empty())) return std::nullopt;
  return literal_.empty() ? 1 : std::max<size_t>(1, (literal_.size() + content.size() - 1) / content.size());
}

}  // namespace ef
