// JSON from clients and models: copying, printing and reading it recurse, so its depth has a limit, and looking a
// member up goes through all of an object, so their number has one.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "expertflow/base/stop_check.h"

namespace ef {

inline constexpr int kMostJsonDepth = 100;
inline constexpr size_t kMostJsonMembers = 65536;

struct BoundedJson {
  nlohmann::ordered_json value;
  std::string error;  ///< "is not valid JSON: ...", "nests more than ..."; empty: there is none
};
/// In time linear in the text's length, whatever it holds. stop: looked at for every value.
BoundedJson read_bounded_json(std::string_view text, const StopCheck& stop = {});

/// Discarded (is_discarded()) where the text is no JSON or goes beyond the limits.
inline nlohmann::ordered_json parse_bounded_json(std::string_view text) {
  BoundedJson read = read_bounded_json(text);
  return read.error.empty() ? std::move(read.value)
                            : nlohmann::ordered_json(nlohmann::ordered_json::value_t::discarded);
}

}  // namespace ef
