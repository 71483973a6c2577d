#include "apps/cli/outputs.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "expertflow/base/errors.h"
#include "expertflow/base/output_file.h"
#include "expertflow/weights/gguf.h"

namespace ef::cli {

namespace {

namespace fs = std::filesystem;

void check_can_be_written(const char* flag, const std::string& path) {
  const fs::path target = output_target(path), folder = is_output_stream(path) ? target : target.parent_path();
  std::error_code ignored;
  EF_CHECK(!fs::is_directory(path, ignored), DeviceError, "{} {}: is a folder", flag, path);
  EF_CHECK(access(folder.empty() ? "." : folder.c_str(), is_output_stream(path) ? W_OK : W_OK | X_OK) == 0, DeviceError,
           "{} {}: cannot create: {}", flag, path, std::strerror(errno));
}

// Whether a flag's value is that file, or what it is a part of: a folder's file, a shard, the file before ":kind".
bool names(const std::string& value, const fs::path& output) {
  std::error_code error;
  const fs::path target = output_target(output);
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  if (fs::is_directory(value, error)) return fs::exists(target, error) && fs::equivalent(folder, value, error);
  for (const std::string& name : {value, value.substr(0, value.rfind(':')), first_shard(value)})
    for (const std::string& written : {target.string(), first_shard(target)})
      if (fs::weakly_canonical(fs::absolute(name, error), error) ==
              fs::weakly_canonical(fs::absolute(written, error), error) ||
          fs::equivalent(name, written, error))
        return true;
  return false;
}

}  // namespace

void check_outputs(const CLI::App& command, std::initializer_list<const char*> flags) {
  for (const char* flag : flags) {
    const CLI::Option* output = command.get_option(flag);
    for (const std::string& path : output->results()) {
      if (path.empty() || path == "auto" || path == "off") continue;
      check_can_be_written(flag, path);
      if (is_output_stream(path)) continue;
      for (const CLI::Option* other : command.get_options())
        for (const std::string& value : other->results())
          EF_CHECK(other == output || other->get_type_name() != "TEXT" || value.empty() || !names(value, path),
                   ConfigError, "{} {}: expected a file of its own, found what {} names ({})", flag, path,
                   other->get_name(), value);
    }
  }
}

}  // namespace ef::cli
