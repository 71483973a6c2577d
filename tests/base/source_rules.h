// Reads the sources and reports where they break the rules of docs/design.md: the ladder of layers, where CUDA headers
// may appear, and how long a file may be.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ef::testing {

struct SourceReport {
  int files = 0;                        // sources read
  int includes = 0;                     // lines that include a file of this project
  std::vector<std::string> violations;  // "path:line: what is wrong"
};

inline constexpr int kMaxLines = 620;

// Checks expertflow/, apps/, bench/ and tests/ below `root`.
SourceReport check_sources(const std::filesystem::path& root);

}  // namespace ef::testing
