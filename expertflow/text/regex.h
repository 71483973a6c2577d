// Regular expressions of tokenizers. Hugging Face writes them for Oniguruma; PCRE2 runs them, after a translation of
// what the two read differently (regex_syntax.cpp). Properties follow PCRE2's Unicode version: younger characters count
// as unassigned.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "expertflow/base/stop_check.h"

namespace ef {

/// The PCRE2 pattern equivalent to an Oniguruma one. ModelError, naming `where`, for what has no translation.
std::string oniguruma_to_pcre2(std::string_view pattern, std::string_view where);

/// Immutable; safe to use from several threads.
class Regex {
 public:
  using Match = std::pair<size_t, size_t>;  ///< byte range [first, second)

  /// Oniguruma syntax. ModelError naming `where`, the pattern and the reason if it does not compile.
  Regex(std::string_view pattern, std::string_view where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// All matches from left to right, not overlapping, empty ones included (but never right after another match). Text
  /// must be well-formed UTF-8. RequestError if the text drives the pattern beyond its effort limit.
  std::vector<Match> find_all(std::string_view text, const StopCheck& stop = {}) const;
  const std::string& pattern() const { return pattern_; }

 private:
  struct Compiled;
  std::string pattern_;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace ef
