// The {"String": ...} or {"Regex": ...} patterns of Split and Replace.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/text/regex.h"
#include "expertflow/text/tokenizer_fields.h"

namespace ef {

class Pattern {
 public:
  /// ModelError if the node is neither a string nor one of the two objects, or if the expression does not compile.
  explicit Pattern(const fields::Node& node);
  explicit Pattern(Regex regex) : regex_(std::move(regex)) {}
  std::vector<Regex::Match> find_all(std::string_view text, const StopCheck& stop) const;
  std::string replace(std::string_view text, std::string_view content, const StopCheck& stop = {}) const;
  /// How many times longer a match can be than `content`, rounded up; nothing: any number of times.
  std::optional<size_t> most_shrinking(std::string_view content) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

}  // namespace ef
