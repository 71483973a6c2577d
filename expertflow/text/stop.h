// Stop strings over text: they may span tokens, and no part of one is ever shown.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ef {

class StopMatcher {
 public:
  /// RequestError for an empty stop string.
  explicit StopMatcher(std::vector<std::string> stops = {});

  /// Takes the text of one token and returns what may be shown now. What could still become a stop string is held back,
  /// and so is the whole of the token in which it begins: text is shown in whole tokens, except before a stop.
  std::string push(std::string_view piece);
  /// The text ends: what was held back and is no stop.
  std::string finish();

  bool stopped() const { return matched_.has_value(); }
  /// Index of the stop string that was found.
  std::optional<size_t> matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::vector<size_t> starts_;  // where tokens begin in held_
  std::optional<size_t> matched_;
};

}  // namespace ef
