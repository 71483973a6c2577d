// JSON from clients and models: copying, printing and reading it recurse, so its depth has a limit.
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

namespace ef {

inline constexpr int kMostJsonDepth = 100;

/// Discarded (is_discarded()) where the text is no JSON or nests deeper.
inline nlohmann::ordered_json parse_bounded_json(std::string_view text) {
  using Json = nlohmann::ordered_json;
  bool deep = false;
  Json json = Json::parse(
      text,
      [&](int depth, Json::parse_event_t, Json&) {
        deep |= depth > kMostJsonDepth;
        return !deep;
      },
      false);
  return deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace ef
