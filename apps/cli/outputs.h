// Files that commands write, judged before the work begins.
#pragma once
#include <string>
#include <vector>

namespace ef::cli {

struct NamedFile {
  const char* flag;
  std::string path;  ///< empty: not given
};

/// DeviceError if an output could not be created. ConfigError if it, or PATH.partial, is what another flag names, a
/// part of the model's folder or split file among it, or another output. FILE:KIND names FILE.
void check_outputs(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

}  // namespace ef::cli
