// Files that commands write, judged before the work begins.
#pragma once
#include <CLI/CLI.hpp>
#include <initializer_list>

namespace ef::cli {

/// Of each flag's file: DeviceError if it could not be created, ConfigError if another flag names it as well (or the
/// folder or split file that it is a part of). "auto" and "off" are no files.
void check_outputs(const CLI::App& command, std::initializer_list<const char*> flags);

}  // namespace ef::cli
