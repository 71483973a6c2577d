// Where files are kept that a user can lose without harm: measurements, profiles.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <string>

namespace ef {

/// $XDG_CACHE_HOME/expertflow/NAME, else under $HOME/.cache; empty if there is neither (then nothing is kept).
inline std::filesystem::path user_cache_file(const std::string& name) {
  const auto set = [](const char* variable) { return std::getenv(variable) && *std::getenv(variable); };
  if (set("XDG_CACHE_HOME")) return std::filesystem::path(std::getenv("XDG_CACHE_HOME")) / "expertflow" / name;
  if (set("HOME")) return std::filesystem::path(std::getenv("HOME")) / ".cache" / "expertflow" / name;
  return {};
}

}  // namespace ef
