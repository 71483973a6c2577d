#include "expertflow/weights/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "expertflow/base/errors.h"
#include "expertflow/weights/checked.h"
#include "expertflow/weights/json_file.h"
#include "expertflow/weights/safetensors.h"

namespace ef {
namespace {

namespace fs = std::filesystem;

bool ends_with(const std::string& text, std::string_view tail) {
  return text.size() >= tail.size() && std::string_view(text).substr(text.size() - tail.size()) == tail;
}

/// Names of the regular files in a folder, sorted.
std::vector<std::string> list_files(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) names.push_back(it->path().filename().string());
  }
  EF_CHECK(!error, ModelError, "{}: cannot list the folder: {}", folder.string(), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kListed = 8;
  if (names.empty()) return "nothing";
  std::vector<std::string> listed;
  for (size_t i = 0; i < std::min(names.size(), kListed); ++i) listed.push_back(printable(names[i]));
  return fmt::format("{}{}", fmt::join(listed, ", "), names.size() > kListed ? ", ..." : "");
}

Checkpoint open_hugging_face(const fs::path& folder) {
  Checkpoint checkpoint;
  checkpoint.kind = Checkpoint::Kind::kHuggingFace;
  checkpoint.path = folder;
  checkpoint.config = read_json_object(folder / "config.json");
  const fs::path generation = folder / "generation_config.json";
  if (fs::exists(generation)) checkpoint.generation_config = read_json_object(generation);
  read_safetensors_folder(folder, checkpoint.directory);
  return checkpoint;
}

Checkpoint open_gguf(const fs::path& file) {
  Checkpoint checkpoint;
  checkpoint.kind = Checkpoint::Kind::kGguf;
  checkpoint.gguf = read_gguf(file, checkpoint.directory);
  checkpoint.path = checkpoint.gguf.metadata.file;
  return checkpoint;
}

/// A range of a file as a file of its own.
class PartOfSource final : public ByteSource {
 public:
  PartOfSource(std::shared_ptr<const ByteSource> whole, uint64_t offset, uint64_t bytes)
      : whole_(std::move(whole)), offset_(offset), bytes_(bytes) {}
  const std::string& name() const override { return whole_->name(); }
  uint64_t size() const override { return bytes_; }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    EF_CHECK(offset <= bytes_ && out.size() <= bytes_ - offset, DeviceError,
             "{}: short read at offset {} of a part of {} bytes", name(), offset, bytes_);
    whole_->read(offset_ + offset, out);
  }

 private:
  const std::shared_ptr<const ByteSource> whole_;
  const uint64_t offset_, bytes_;
};

Checkpoint open_packed(const fs::path& path) {
  const auto source = std::make_shared<FileSource>(path);
  Checkpoint checkpoint;
  checkpoint.path = path;
  checkpoint.packed = read_packed(*source);
  const PackedIndex& index = *checkpoint.packed;
  checkpoint.directory.add_file(source, index.tensors);
  checkpoint.side = packed_files(source, index);
  if (index.source_kind == "gguf") {
    checkpoint.kind = Checkpoint::Kind::kGguf;
    const auto header = index.files.find("metadata.gguf");
    EF_CHECK(header != index.files.end(), ModelError, "{}: index: files: expected metadata.gguf, found none",
             path.string());
    std::vector<TensorInfo> none;
    checkpoint.gguf = parse_gguf(PartOfSource(source, header->second.offset, header->second.bytes), none);
    return checkpoint;
  }
  const auto object = [&](const char* name) {
    const auto text = checkpoint.side->read(name, kMaxJsonFile);
    return text ? parse_json_object(*text, checkpoint.side->where(name)) : nlohmann::json();
  };
  checkpoint.config = object("config.json");
  EF_CHECK(checkpoint.config.is_object(), ModelError, "{}: index: files: expected config.json, found none",
           path.string());
  checkpoint.generation_config = object("generation_config.json");
  return checkpoint;
}

/// Single files that hold a model, told apart by how they begin.
struct FileKind {
  std::string_view magic;
  Checkpoint (*open)(const fs::path&);
};
constexpr FileKind kFileKinds[] = {{"GGUF", open_gguf}, {kPackedMagic, open_packed}};

/// One name for each GGUF model of a folder: shards after the first and image projectors are left out.
std::vector<std::string> gguf_models(const std::vector<std::string>& names) {
  std::vector<std::string> models;
  std::string last_group;
  for (const std::string& name : names) {
    if (!ends_with(name, ".gguf") || name.rfind("mmproj", 0) == 0) continue;
    constexpr size_t kTail = sizeof("00001-of-00001.gguf") - 1;
    std::string group = name;
    if (name.size() > kTail && name.substr(name.size() - kTail + 5, 4) == "-of-") {
      group = name.substr(0, name.size() - kTail) + name.substr(name.size() - kTail + 5);
    }
    if (group != last_group) models.push_back(name);
    last_group = std::move(group);
  }
  return models;
}

Checkpoint open_folder(const fs::path& folder) {
  const std::vector<std::string> names = list_files(folder);
  auto has = [&](std::string_view name) { return std::binary_search(names.begin(), names.end(), name, std::less<>()); };
  if (has("model.safetensors") || has("model.safetensors.index.json")) {
    EF_CHECK(has("config.json"), ModelError, "{}: expected config.json beside the safetensors files, found {}",
             folder.string(), some_of(names));
    return open_hugging_face(folder);
  }
  const std::vector<std::string> models = gguf_models(names);
  EF_CHECK(models.size() <= 1, ModelError, "{}: expected one GGUF model in the folder, found {} (name the file): {}",
           folder.string(), models.size(), some_of(models));
  if (!models.empty()) return open_gguf(folder / models.front());
  for (const std::string& name : names) refuse_gguf_part(folder / name);
  const bool pickled = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name.rfind("pytorch_model", 0) == 0 || ends_with(name, ".pt") || ends_with(name, ".pth");
  });
  fail<ModelError>(
      "{}: expected config.json with model.safetensors (or model.safetensors.index.json and its shards), or one .gguf "
      "model; found {}{}",
      folder.string(), some_of(names),
      pickled ? " (PyTorch's pickled weights are not read: convert them to safetensors)" : "");
}

std::string first_bytes(const fs::path& path) {
  FileSource file(path);
  std::string first(size_t(std::min<uint64_t>(32, file.size())), '\0');
  file.read(0, std::as_writable_bytes(std::span(first)));
  return first;
}

}  // namespace

Checkpoint open_checkpoint(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    refuse_gguf_part(path);
    fail<ModelError>("{}: expected a model folder or file, found {}", path.string(),
                     error ? error.message() : "nothing there");
  }
  if (fs::is_directory(status)) return open_folder(path);
  refuse_gguf_part(path);
  const std::string name = path.filename().string();
  // A file of a Hugging Face folder stands for the folder.
  if (name == "config.json" || ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json")) {
    return open_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
  }
  const std::string first = first_bytes(path);
  for (const FileKind& kind : kFileKinds)
    if (first.starts_with(kind.magic)) return kind.open(path);
  if (ends_with(name, ".gguf")) return open_gguf(path);  // says what is wrong with it
  fail<ModelError>(
      "{}: expected a packed, GGUF or safetensors file, or a folder with one; found a file that begins with {}{}",
      path.string(), first.empty() ? "nothing (0 bytes)" : printable(first), guess_content(first));
}

}  // namespace ef
