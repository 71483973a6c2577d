#include "apps/cli/outputs.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "expertflow/base/errors.h"
#include "expertflow/base/output_file.h"
#include "expertflow/weights/gguf.h"

namespace ef::cli {

namespace {

namespace fs = std::filesystem;

void check_can_be_written(const char* flag, const std::string& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  EF_CHECK(!error || type == fs::file_type::not_found, DeviceError, "{} {}: cannot create: {}", flag, path,
           error.message());
  EF_CHECK(type != fs::file_type::directory, DeviceError, "{} {}: is a folder", flag, path);
  const bool stream = is_output_stream(path);
  const fs::path target = output_target(path), folder = target.has_parent_path() ? target.parent_path() : ".";
  EF_CHECK(access(stream ? path.c_str() : folder.c_str(), stream ? W_OK : W_OK | X_OK) == 0, DeviceError,
           "{} {}: cannot create: {}", flag, path, std::strerror(errno));
  constexpr size_t kMostName = 255;
  EF_CHECK(partial_of(target).filename().string().size() <= kMostName, DeviceError,
           "{} {}: cannot create: the name is too long", flag, path);
}

// A file by which a model's folder would be missed; results may lie there.
bool is_of_a_model(const fs::path& file) {
  const std::string name = file.filename().string();
  constexpr std::array<std::string_view, 13> kEnds = {
      ".safetensors",      ".gguf",      ".bin",       ".model",      ".txt",           ".jinja",
      "config.json",       "index.json", "vocab.json", "tokens.json", "tokenizer.json", "_map.json",
      "chat_template.json"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return name.ends_with(end); });
}

bool same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) ||
         fs::weakly_canonical(fs::absolute(a, error), error) == fs::weakly_canonical(fs::absolute(b, error), error);
}

bool names(const std::string& value, const std::string& output) {
  std::error_code error;
  for (const fs::path& written : {fs::path(output), output_target(output), partial_of(output_target(output))}) {
    if (fs::is_directory(value, error)) {
      const fs::path folder = written.has_parent_path() ? written.parent_path() : fs::path(".");
      if (fs::exists(written, error) && is_of_a_model(written) && fs::equivalent(folder, value, error)) return true;
      continue;
    }
    if (same(value, written) || same(value.substr(0, value.rfind(':')), written) ||
        (first_shard(value) != value && same(first_shard(value), first_shard(written))) ||
        (first_shard(written) != written && same(value, first_shard(written))))
      return true;
  }
  return false;
}

}  // namespace

void check_outputs(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  for (const NamedFile& output : outputs) {
    if (output.path.empty()) continue;
    check_can_be_written(output.flag, output.path);
    if (is_output_stream(output.path)) continue;
    for (const auto* others : {&inputs, &outputs})
      for (const NamedFile& other : *others)
        EF_CHECK(&other == &output || other.path.empty() || !names(other.path, output.path), ConfigError,
                 "{} {}: expected a file of its own, found what {} names ({})", output.flag, output.path, other.flag,
                 other.path);
  }
}

}  // namespace ef::cli
