// inspect TRACE: how a recorded run used its experts.
#pragma once
#include <string>

namespace ef::cli {

/// Prints load, balance, collisions and reuse as text or JSON; heat_map: a picture of the load, unless empty.
int inspect_trace(const std::string& path, bool json, const std::string& heat_map);

}  // namespace ef::cli
