// Added tokens: texts that are cut out before normalisation or after it, and become one id.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/base/stop_check.h"

namespace ef {

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool special = false;      ///< left out by decode(skip_special), plain text under parse_special = false
  bool normalized = false;   ///< matched after normalisation
  bool lstrip = false;       ///< swallows white space on its left
  bool rstrip = false;       ///< and on its right
  bool single_word = false;  ///< only where no word character touches it
};

/// Finds the longest of a set of texts at a position.
class LongestMatcher {
 public:
  void add(std::string text, size_t value);
  struct Hit {
    size_t length, value;
  };
  std::optional<Hit> at(std::string_view text, size_t position) const;
  bool empty() const { return values_.empty(); }

 private:
  std::unordered_map<std::string, size_t> values_;
  std::array<std::vector<size_t>, 256> lengths_;  // by first byte, descending
};

class AddedTokens {
 public:
  /// texts: what is matched for each token (its content, or its normalised content).
  void add(const AddedToken& token, std::string text);

  struct Section {
    size_t begin = 0, end = 0;
    std::optional<TokenId> id;  ///< an added token; none: text
  };
  /// Covers the text with sections, leftmost longest. parse_special false: special tokens are text.
  std::vector<Section> split(std::string_view text, bool parse_special, const StopCheck& stop) const;

 private:
  std::vector<AddedToken> tokens_;
  LongestMatcher plain_, all_;  // without and with special tokens
};

}  // namespace ef
