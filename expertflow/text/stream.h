// Bytes of tokens to text that can be shown: no split characters, no stop strings.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/text/stop.h"

namespace ef {

/// Byte stream to well-formed UTF-8. A character that is not yet complete is held; bytes that cannot become one are
/// U+FFFD each (one for each longest beginning of a character, as Unicode recommends), at once.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  /// The stream ends: a character that was never completed becomes U+FFFD.
  std::string finish();
  bool pending() const { return !held_.empty(); }

 private:
  std::string held_;
};

/// The text of one generation, token by token.
class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops = {}) : stop_(std::move(stops)) {}

  /// The bytes of the next token; returns the text that may be shown now, often empty.
  std::string push(std::string_view token_bytes) { return stop_.push(utf8_.push(token_bytes)); }
  /// The generation ended without a stop string: the rest of the text.
  std::string finish();
  /// A stop string was found: nothing further is shown, and generation should end.
  bool stopped() const { return stop_.stopped(); }
  std::optional<size_t> matched() const { return stop_.matched(); }

 private:
  Utf8Stream utf8_;
  StopMatcher stop_;
};

}  // namespace ef
