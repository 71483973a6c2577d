#include "expertflow/weights/writers.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "expertflow/base/align.h"
#include "expertflow/base/errors.h"
#include "expertflow/base/output_file.h"
#include "expertflow/weights/checked.h"
#include "expertflow/weights/packed.h"

namespace ef {
namespace {

namespace fs = std::filesystem;
using Type = GgufValue::Type;

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

// What lies in a Hugging Face folder without being of it.
bool is_result(const fs::path& file) {
  std::array<char, kPackedMagic.size()> front{};
  std::ifstream(file, std::ios::binary).read(front.data(), front.size());
  return file.extension() == ".gguf" || std::string_view(front.data(), front.size()) == kPackedMagic;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

/// A directory entry survives a crash only once its folder is flushed; filesystems that cannot do this are left alone.
void flush_folder(const fs::path& folder) {
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::fsync(fd);
  ::close(fd);
}

/// What both writers share: the order of declarations, counting bytes, temporary files. A format says where tensors
/// lie.
class StreamingWriter : public CheckpointWriter {
 public:
  explicit StreamingWriter(fs::path folder) : folder_(std::move(folder)) {}

  void declare(const std::string& name, Format format, const std::vector<int64_t>& shape) final {
    EF_CHECK(!begun_, ModelError, "{}: tensor {}: declared after the first write", where(), printable(name));
    EF_CHECK(!name.empty() && names_.find(name) == names_.end(), ModelError,
             "{}: tensor {}: expected each name once, and none empty", where(), printable(name));
    TensorInfo tensor;
    tensor.name = name;
    tensor.format = format;
    tensor.shape = shape;
    tensor.bytes = checked_tensor_bytes(where(), name, format, shape);
    check(tensor);
    names_.insert(name);
    tensors_.push_back(std::move(tensor));
  }

  void write(std::span<const std::byte> bytes) final {
    begin();
    skip_complete();
    if (bytes.empty()) return;
    EF_CHECK(current_ < tensors_.size(), ModelError, "{}: expected {} tensors, found {} bytes more", where(),
             tensors_.size(), bytes.size());
    const TensorInfo& tensor = tensors_[current_];
    EF_CHECK(bytes.size() <= tensor.bytes - written_, ModelError, "{}: tensor {}: expected {} bytes in all, found {}",
             where(), printable(tensor.name), tensor.bytes, written_ + bytes.size());
    files_[size_t(tensor.file)].write(tensor.offset + written_, bytes);
    written_ += bytes.size();
  }

  void finish() final {
    begin();
    skip_complete();
    EF_CHECK(current_ == tensors_.size(), ModelError, "{}: tensor {}: expected {} bytes, found {} written", where(),
             printable(tensors_[current_].name), tensors_[current_].bytes, written_);
    for (size_t i = 0; i < files_.size(); ++i) files_[i].complete(ends_[i]);
    for (OutputFile& file : files_) file.publish();
    flush_folder(folder_);
  }

 protected:
  virtual std::string where() const = 0;
  /// Refuses what the format cannot hold.
  virtual void check(const TensorInfo& tensor) const = 0;
  /// Sets file and absolute offset of every tensor, and calls add_file for each file in order.
  virtual void lay_out() = 0;

  /// A file with its beginning and its final size.
  void add_file(const fs::path& name, const std::string& header, uint64_t end) {
    files_.emplace_back(folder_ / name);
    files_.back().write(0, bytes_of(header));
    ends_.push_back(end);
  }

  const fs::path folder_;
  std::vector<TensorInfo> tensors_;

 private:
  void begin() {
    if (begun_) return;
    begun_ = true;
    uint64_t total = 0;
    for (const TensorInfo& tensor : tensors_) {
      const auto sum = checked_add(total, tensor.bytes);
      EF_CHECK(sum.has_value(), ModelError, "{}: expected tensors of less than 2^64 bytes in all, found more", where());
      total = *sum;
    }
    std::error_code error;
    const fs::space_info space = fs::space(folder_.empty() ? "." : folder_, error);
    EF_CHECK(error || total <= space.available, DeviceError, "{}: expected {} bytes of free space, found {}", where(),
             total, space.available);
    lay_out();
  }

  void skip_complete() {
    while (current_ < tensors_.size() && written_ == tensors_[current_].bytes) {
      ++current_;
      written_ = 0;
    }
  }

  std::unordered_set<std::string> names_;
  std::vector<OutputFile> files_;
  std::vector<uint64_t> ends_;
  bool begun_ = false;
  size_t current_ = 0;
  uint64_t written_ = 0;
};

class GgufWriter final : public StreamingWriter {
 public:
  GgufWriter(const fs::path& file, const GgufMetadata& metadata)
      : StreamingWriter(file.parent_path()), file_(file), metadata_(metadata), alignment_(gguf_alignment(metadata)) {}

  std::string header_text() const;

 private:
  std::string where() const override { return file_.string(); }

  void check(const TensorInfo& tensor) const override {
    const FormatInfo& info = format_info(tensor.format);
    EF_CHECK(info.ggml_type >= 0, ModelError, "{}: tensor {}: expected a format that GGUF has, found {}", where(),
             printable(tensor.name), info.name);
    EF_CHECK(tensor.name.size() < 64, ModelError, "{}: tensor {}: expected a name of less than 64 bytes, found {}",
             where(), printable(tensor.name), tensor.name.size());
    EF_CHECK(tensor.bytes != 0 && tensor.shape.size() <= 4, ModelError,
             "{}: tensor {}: expected at most 4 dimensions above 0, found {}", where(), printable(tensor.name),
             tensor.shape_text());
  }

  void lay_out() override {
    uint64_t end = 0;
    for (TensorInfo& tensor : tensors_) {
      tensor.offset = end;
      end = round_up(end + tensor.bytes, alignment_);
    }
    std::string header = header_text();
    header.resize(round_up(header.size(), alignment_), '\0');
    for (TensorInfo& tensor : tensors_) tensor.offset += header.size();
    add_file(file_.filename(), header, header.size() + end);
  }

  template <class T>
  static void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  static void put_string(std::string& out, std::string_view text) {
    put<uint64_t>(out, text.size());
    out += text;
  }

  template <class T, class Stored>
  void put_numbers(std::string& out, const std::string& key, const GgufValue& value) const {
    for (Stored x : stored<std::vector<Stored>>(key, value)) put(out, T(x));
  }

  template <class T>
  const T& stored(const std::string& key, const GgufValue& value) const {
    const T* typed = std::get_if<T>(&value.value);
    EF_CHECK(typed != nullptr, ModelError, "{}: metadata key {}: expected a value of type {}, found another", where(),
             printable(key), gguf_type_name(value.type));
    return *typed;
  }

  void put_array(std::string& out, const std::string& key, const GgufValue& value) const {
    put(out, uint32_t(value.element));
    put<uint64_t>(out, std::visit(
                           [](const auto& v) -> uint64_t {
                             if constexpr (requires { v.size(); }) return v.size();
                             return 0;
                           },
                           value.value));
    switch (value.element) {
      case Type::kU8:
      case Type::kI8:
      case Type::kBool:
        return put_numbers<uint8_t, int64_t>(out, key, value);
      case Type::kU16:
      case Type::kI16:
        return put_numbers<uint16_t, int64_t>(out, key, value);
      case Type::kU32:
      case Type::kI32:
        return put_numbers<uint32_t, int64_t>(out, key, value);
      case Type::kU64:
      case Type::kI64:
        return put_numbers<uint64_t, int64_t>(out, key, value);
      case Type::kF32:
        return put_numbers<float, double>(out, key, value);
      case Type::kF64:
        return put_numbers<double, double>(out, key, value);
      case Type::kString:
        for (const std::string& text : stored<std::vector<std::string>>(key, value)) put_string(out, text);
        return;
      case Type::kArray:
        break;
    }
    fail<ModelError>("{}: metadata key {}: expected an array of plain values", where(), printable(key));
  }

  void put_entry(std::string& out, const std::string& key, const GgufValue& value) const {
    put_string(out, key);
    put(out, uint32_t(value.type));
    switch (value.type) {
      case Type::kU8:
      case Type::kI8:
        return put(out, uint8_t(stored<int64_t>(key, value)));
      case Type::kU16:
      case Type::kI16:
        return put(out, uint16_t(stored<int64_t>(key, value)));
      case Type::kU32:
      case Type::kI32:
        return put(out, uint32_t(stored<int64_t>(key, value)));
      case Type::kI64:
        return put(out, stored<int64_t>(key, value));
      case Type::kU64:
        return put(out, stored<uint64_t>(key, value));
      case Type::kF32:
        return put(out, float(stored<double>(key, value)));
      case Type::kF64:
        return put(out, stored<double>(key, value));
      case Type::kBool:
        return put(out, uint8_t(stored<bool>(key, value)));
      case Type::kString:
        return put_string(out, stored<std::string>(key, value));
      case Type::kArray:
        return put_array(out, key, value);
    }
  }

  const fs::path file_;
  const GgufMetadata metadata_;
  const uint32_t alignment_;
};

std::string GgufWriter::header_text() const {
  constexpr std::string_view kFirst = "general.architecture";  // some tools look only there
  std::string entries;
  uint64_t count = 0;
  auto put_if = [&](bool first) {
    for (const auto& [key, value] : metadata_.values) {
      if (key.rfind("split.", 0) == 0 || (key == kFirst) != first) continue;
      put_entry(entries, key, value);
      ++count;
    }
  };
  put_if(true);
  put_if(false);
  std::string out = "GGUF";
  put<uint32_t>(out, 3);
  put<uint64_t>(out, tensors_.size());
  put<uint64_t>(out, count);
  out += entries;
  for (const TensorInfo& tensor : tensors_) {
    put_string(out, tensor.name);
    put(out, uint32_t(tensor.shape.size()));
    for (size_t d = tensor.shape.size(); d-- > 0;) put(out, uint64_t(tensor.shape[d]));
    put(out, uint32_t(format_info(tensor.format).ggml_type));
    put(out, tensor.offset);
  }
  return out;
}

class SafetensorsWriter final : public StreamingWriter {
 public:
  SafetensorsWriter(const fs::path& folder, uint64_t shard_bytes) : StreamingWriter(folder), shard_bytes_(shard_bytes) {
    std::error_code error;
    fs::create_directories(folder, error);
    EF_CHECK(!error, DeviceError, "{}: cannot create the folder: {}", folder.string(), error.message());
  }

 private:
  std::string where() const override { return folder_.string(); }

  void check(const TensorInfo& tensor) const override {
    const FormatInfo& info = format_info(tensor.format);
    EF_CHECK(!info.safetensors_dtype.empty(), ModelError,
             "{}: tensor {}: expected a format that safetensors has, found {}", where(), printable(tensor.name),
             info.name);
    try {
      (void)nlohmann::json(tensor.name).dump();
    } catch (const nlohmann::json::exception&) {
      fail<ModelError>("{}: tensor {}: expected a name in UTF-8, found other bytes", where(), printable(tensor.name));
    }
  }

  void lay_out() override {
    std::vector<std::vector<size_t>> shards(1);
    uint64_t filled = 0, total = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const uint64_t bytes = tensors_[i].bytes;
      if (!shards.back().empty() && filled + bytes > shard_bytes_) {
        shards.emplace_back();
        filled = 0;
      }
      shards.back().push_back(i);
      filled += bytes;
      total += bytes;
    }
    const bool single = shards.size() == 1;
    // A reader takes the single file if both are there, so the other kind must not be left over.
    const char* other = single ? "model.safetensors.index.json" : "model.safetensors";
    EF_CHECK(!fs::exists(folder_ / other), ConfigError,
             "{}: expected a folder without {}, found one: write into an empty folder", where(), other);
    nlohmann::json map = nlohmann::json::object();
    for (size_t s = 0; s < shards.size(); ++s) {
      const std::string name =
          single ? "model.safetensors" : fmt::format("model-{:05d}-of-{:05d}.safetensors", s + 1, shards.size());
      lay_out_shard(int(s), name, shards[s]);
      for (size_t i : shards[s]) map[tensors_[i].name] = name;
    }
    if (single) return;
    const std::string index = nlohmann::json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n";
    add_file("model.safetensors.index.json", index, index.size());
  }

  void lay_out_shard(int file, const std::string& name, std::vector<size_t> order) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return format_info(tensors_[a].format).block_bytes > format_info(tensors_[b].format).block_bytes;
    });
    nlohmann::ordered_json header;
    header["__metadata__"] = {{"format", "pt"}};
    uint64_t end = 0;
    for (size_t i : order) {
      TensorInfo& tensor = tensors_[i];
      tensor.file = file;
      tensor.offset = end;
      end += tensor.bytes;
      header[tensor.name] = {{"dtype", format_info(tensor.format).safetensors_dtype},
                             {"shape", tensor.shape},
                             {"data_offsets", {tensor.offset, end}}};
    }
    std::string text = header.dump();
    text.resize(round_up(text.size(), 8), ' ');
    const uint64_t length = text.size();
    text.insert(0, reinterpret_cast<const char*>(&length), 8);
    for (size_t i : order) tensors_[i].offset += text.size();
    add_file(name, text, text.size() + end);
  }

  const uint64_t shard_bytes_;
};

}  // namespace

void check_output_file(const Checkpoint& source, const fs::path& out, bool force) {
  for (int i = 0; i < source.directory.file_count(); ++i)
    for (const fs::path& written : {out, partial_of(output_target(out))})
      EF_CHECK(!same_file(source.directory.file(i).name(), written), ConfigError,
               "{}: expected another file than the source's, found the same", written.string());
  std::error_code error;
  const bool exists = fs::exists(out, error);
  EF_CHECK(!exists || is_result(out) || !same_file(source.path, fs::absolute(output_target(out)).parent_path()),
           ConfigError, "{}: expected another file than one of the source's folder", out.string());
  EF_CHECK(!fs::is_directory(out, error), ConfigError, "{}: expected the name of a file to write, found a folder",
           out.string());
  EF_CHECK(!is_output_stream(out), ConfigError, "{}: expected the name of a file to write, found a device or a pipe",
           out.string());
  EF_CHECK(force || !exists, ConfigError,
           "{}: expected a file that does not exist yet, found one: give --force to replace it", out.string());
  const fs::path folder = out.has_parent_path() ? out.parent_path() : fs::path(".");
  EF_CHECK(fs::is_directory(folder), ConfigError, "{}: expected a folder to write into, found none at {}", out.string(),
           folder.string());
}

std::unique_ptr<CheckpointWriter> make_gguf_writer(const fs::path& file, const GgufMetadata& metadata) {
  return std::make_unique<GgufWriter>(file, metadata);
}

std::string gguf_metadata_bytes(const GgufMetadata& metadata) { return GgufWriter({}, metadata).header_text(); }

std::unique_ptr<CheckpointWriter> make_safetensors_writer(const fs::path& folder, uint64_t shard_bytes) {
  return std::make_unique<SafetensorsWriter>(folder, shard_bytes);
}

}  // namespace ef
