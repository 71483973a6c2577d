#include "expertflow/weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "expertflow/base/errors.h"
#include "expertflow/weights/checked.h"
#include "expertflow/weights/json_file.h"

namespace ef {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxHeader = 100'000'000;  // as the reference implementation
constexpr size_t kMaxDims = 16;

/// Collects the header while it is parsed: no tree is built, duplicate keys are seen, nothing nests deeper than the
/// format does.
class HeaderHandler {
 public:
  using json = nlohmann::json;
  explicit HeaderHandler(const std::string& file) : file_(file) {}

  std::map<std::string, std::string> metadata;
  std::vector<TensorInfo> tensors;  ///< offset relative to the data, bytes = end - begin

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a bool"); }
  bool number_integer(json::number_integer_t value) { return unexpected(fmt::format("{}", value)); }
  bool number_float(json::number_float_t, const std::string& text) { return unexpected(text); }
  bool binary(json::binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(json::number_unsigned_t value) {
    if (!in_array_) return unexpected(fmt::format("{}", value));
    std::vector<uint64_t>& list = field_ == Field::kShape ? shape_ : offsets_;
    const size_t most = field_ == Field::kShape ? kMaxDims : 2;
    EF_CHECK(list.size() < most, ModelError, "{}: expected at most {} numbers, found more", where(), most);
    list.push_back(value);
    return true;
  }

  bool string(std::string& text) {
    if (level_ == Level::kMetadata) {
      EF_CHECK(metadata.emplace(key_, text).second, ModelError, "{}: expected each key once, found {} twice", where(),
               printable(key_));
      return true;
    }
    if (level_ != Level::kTensor || field_ != Field::kDtype || in_array_) return unexpected("a string");
    dtype_ = text;
    return true;
  }

  bool start_object(size_t) {
    switch (level_) {
      case Level::kOutside:
        level_ = Level::kTop;
        return true;
      case Level::kTop:
        level_ = name_ == "__metadata__" ? Level::kMetadata : Level::kTensor;
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(std::string& text) {
    if (level_ == Level::kTop) {
      name_ = text;
      EF_CHECK(names_.insert(text).second, ModelError, "{}: tensor {}: expected each name once, found it twice", file_,
               printable(text));
      dtype_.clear(), shape_.clear(), offsets_.clear(), seen_ = 0;
    } else if (level_ == Level::kMetadata) {
      key_ = text;
    } else {
      field_ = text == "dtype"          ? Field::kDtype
               : text == "shape"        ? Field::kShape
               : text == "data_offsets" ? Field::kOffsets
                                        : Field::kNone;
      EF_CHECK(field_ != Field::kNone, ModelError,
               "{}: tensor {}: expected the fields dtype, shape and data_offsets, found {}", file_, printable(name_),
               printable(text));
      EF_CHECK((seen_ & unsigned(field_)) == 0, ModelError, "{}: tensor {}: expected each field once, found {} twice",
               file_, printable(name_), text);
      seen_ |= unsigned(field_);
    }
    return true;
  }

  bool end_object() {
    if (level_ == Level::kTensor) finish_tensor();
    level_ = level_ == Level::kTop ? Level::kOutside : Level::kTop;
    return true;
  }

  bool start_array(size_t) {
    if (level_ != Level::kTensor || in_array_ || (field_ != Field::kShape && field_ != Field::kOffsets))
      return unexpected("an array");
    in_array_ = true;
    return true;
  }
  bool end_array() {
    in_array_ = false;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception& error) {
    // The header follows 8 bytes of length.
    fail<ModelError>("{}: expected a JSON header, found an error at byte {} of the file: {}", file_, position + 8,
                     printable(error.what(), 400));
  }

 private:
  enum class Level { kOutside, kTop, kMetadata, kTensor };
  enum class Field : unsigned { kNone = 0, kDtype = 1, kShape = 2, kOffsets = 4 };

  std::string where() const {
    if (level_ == Level::kOutside) return file_ + ": header";
    if (level_ == Level::kMetadata || name_ == "__metadata__") return file_ + ": __metadata__";
    const char* field = field_ == Field::kDtype     ? " dtype"
                        : field_ == Field::kShape   ? " shape"
                        : field_ == Field::kOffsets ? " data_offsets"
                                                    : "";
    return fmt::format("{}: tensor {}{}", file_, printable(name_), level_ == Level::kTensor ? field : "");
  }

  bool unexpected(std::string_view found) {
    std::string_view expected = "an object";
    if (level_ == Level::kMetadata) expected = "a string";
    if (level_ == Level::kTensor)
      expected = field_ == Field::kDtype ? "a string" : in_array_ ? "an integer of at least 0" : "an array";
    fail<ModelError>("{}: expected {}, found {}", where(), expected, printable(found));
  }

  void finish_tensor() {
    const std::string name = printable(name_);
    EF_CHECK(seen_ == 7, ModelError, "{}: tensor {}: expected dtype, shape and data_offsets, found {}{}{}", file_, name,
             seen_ & 1 ? "dtype " : "", seen_ & 2 ? "shape " : "", seen_ & 4 ? "data_offsets" : "");
    EF_CHECK(offsets_.size() == 2, ModelError, "{}: tensor {}: expected two data_offsets, found {}", file_, name,
             offsets_.size());
    EF_CHECK(offsets_[0] <= offsets_[1], ModelError, "{}: tensor {}: expected data_offsets in order, found [{}, {}]",
             file_, name, offsets_[0], offsets_[1]);
    TensorInfo tensor;
    tensor.name = name_;
    for (uint64_t dim : shape_) {
      EF_CHECK(dim <= uint64_t(std::numeric_limits<int64_t>::max()), ModelError,
               "{}: tensor {}: expected dimensions below 2^63, found {}", file_, name, dim);
      tensor.shape.push_back(int64_t(dim));
    }
    // Exponent bytes (MX scales) stay bytes: whoever needs them decodes them, nothing takes them for numbers.
    const FormatInfo* format = find_safetensors_dtype(dtype_ == "F8_E8M0" ? "U8" : dtype_);
    EF_CHECK(format != nullptr, ModelError, "{}: tensor {}: expected a dtype that this engine reads, found {}", file_,
             name, printable(dtype_));
    tensor.format = format->format;
    tensor.offset = offsets_[0];
    tensor.bytes = offsets_[1] - offsets_[0];
    const uint64_t expected = checked_tensor_bytes(file_, name_, tensor.format, tensor.shape);
    EF_CHECK(tensor.bytes == expected, ModelError,
             "{}: tensor {}: expected {} bytes for {} of shape {}, found data_offsets [{}, {}]", file_, name, expected,
             dtype_, tensor.shape_text(), offsets_[0], offsets_[1]);
    tensors.push_back(std::move(tensor));
  }

  const std::string& file_;
  Level level_ = Level::kOutside;
  Field field_ = Field::kNone;
  bool in_array_ = false;
  unsigned seen_ = 0;
  std::string name_, key_, dtype_;
  std::vector<uint64_t> shape_, offsets_;
  std::unordered_set<std::string> names_;
};

std::string read_header_text(const ByteSource& source) {
  const std::string& file = source.name();
  EF_CHECK(source.size() >= 8, ModelError,
           "{}: expected at least 8 bytes (the length of the header), found a file of {} bytes", file, source.size());
  char first[32] = {};
  const size_t n = size_t(std::min<uint64_t>(sizeof(first), source.size()));
  source.read(0, std::as_writable_bytes(std::span(first, n)));
  uint64_t length;
  std::memcpy(&length, first, 8);
  const std::string guess = guess_content({first, n});
  EF_CHECK(length != 0, ModelError, "{}: expected a header length of at least 1, found 0", file);
  EF_CHECK(length <= kMaxHeader, ModelError, "{}: expected a header length of at most {}, found {}{}", file, kMaxHeader,
           length, guess);
  EF_CHECK(length <= source.size() - 8, ModelError,
           "{}: expected a header of {} bytes, found a file of {} bytes: it is cut short{}", file, length,
           source.size(), guess);
  EF_CHECK(first[8] == '{', ModelError, "{}: expected a header that begins with a brace, found {}", file,
           printable({first + 8, 1}));
  std::string text(length, '\0');
  source.read(8, std::as_writable_bytes(std::span(text)));
  return text;
}

/// Checks that the ranges cover the data without overlap and holes, and makes the offsets absolute.
void place_tensors(const ByteSource& source, std::vector<TensorInfo>& tensors, uint64_t start) {
  const uint64_t available = source.size() - start;
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(tensors[a].offset, tensors[a].bytes) < std::pair(tensors[b].offset, tensors[b].bytes);
  });
  uint64_t expected = 0;
  const TensorInfo* before = nullptr;
  for (size_t i : order) {
    const TensorInfo& tensor = tensors[i];
    const std::string name = printable(tensor.name);
    EF_CHECK(tensor.bytes <= available && tensor.offset <= available - tensor.bytes, ModelError,
             "{}: tensor {}: expected {} bytes at offset {} of the data (a file of {} bytes), found a file of {} "
             "bytes: it is cut short",
             source.name(), name, tensor.bytes, tensor.offset,
             checked_add(start, tensor.offset + tensor.bytes).value_or(std::numeric_limits<uint64_t>::max()),
             source.size());
    EF_CHECK(tensor.offset == expected, ModelError,
             "{}: tensor {}: expected data at offset {} ({}), found it at {}: {}", source.name(), name, expected,
             before ? "behind tensor " + printable(before->name) : "the beginning of the data", tensor.offset,
             tensor.offset < expected ? "they overlap" : "there is a hole before it");
    expected = tensor.offset + tensor.bytes;
    before = &tensor;
  }
  EF_CHECK(expected == available, ModelError, "{}: expected {} bytes of data as the header says, found {}",
           source.name(), expected, available);
  for (TensorInfo& tensor : tensors) tensor.offset += start;
}

/// weight_map of an index: tensor name to shard, shards as plain file names only.
std::map<std::string, std::string> read_weight_map(const fs::path& index) {
  const nlohmann::json json = read_json_object(index);
  auto map = json.find("weight_map");
  EF_CHECK(map != json.end() && map->is_object() && !map->empty(), ModelError,
           "{}: weight_map: expected an object of tensor names and files, found {}", index.string(),
           map == json.end()  ? "nothing"
           : map->is_object() ? "an empty one"
                              : map->type_name());
  std::map<std::string, std::string> out;
  for (const auto& [name, file] : map->items()) {
    EF_CHECK(file.is_string(), ModelError, "{}: weight_map: tensor {}: expected a file name, found {}", index.string(),
             printable(name), file.type_name());
    const auto& text = file.get_ref<const std::string&>();
    EF_CHECK(!text.empty() && text != "." && text != ".." && text.find('/') == std::string::npos &&
                 text.find('\0') == std::string::npos,
             ModelError, "{}: weight_map: tensor {}: expected a file name within the folder, found {}", index.string(),
             printable(name), printable(text));
    out.emplace(name, text);
  }
  return out;
}

void read_sharded(const fs::path& folder, const fs::path& index, TensorDirectory& directory) {
  const std::map<std::string, std::string> weight_map = read_weight_map(index);
  std::map<std::string, std::string> shards;  // file, and a tensor that needs it
  for (const auto& [tensor, file] : weight_map) shards.emplace(file, tensor);
  for (const auto& [file, tensor] : shards) {
    EF_CHECK(fs::is_regular_file(folder / file), ModelError,
             "{}: expected this shard (tensor {} is in it, says {}), found no such file", (folder / file).string(),
             printable(tensor), index.filename().string());
    read_safetensors_header(std::make_shared<FileSource>(folder / file), directory);
  }
  for (const auto& [tensor, file] : weight_map) {
    const TensorInfo* found = directory.find(tensor);
    const std::string expected = (folder / file).string();
    EF_CHECK(found != nullptr && directory.file_name(*found) == expected, ModelError,
             "{}: tensor {}: expected it in this file, as {} says, found it in {}", expected, printable(tensor),
             index.filename().string(), found == nullptr ? "none" : directory.file_name(*found));
  }
}

}  // namespace

std::map<std::string, std::string> read_safetensors_header(std::shared_ptr<const ByteSource> source,
                                                           TensorDirectory& directory) {
  const std::string text = read_header_text(*source);
  HeaderHandler handler(source->name());
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
  place_tensors(*source, handler.tensors, 8 + text.size());
  directory.add_file(std::move(source), std::move(handler.tensors));
  return std::move(handler.metadata);
}

void read_safetensors_folder(const fs::path& folder, TensorDirectory& directory) {
  const fs::path single = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  if (fs::exists(single)) {
    read_safetensors_header(std::make_shared<FileSource>(single), directory);
    return;
  }
  EF_CHECK(fs::exists(index), ModelError,
           "{}: expected model.safetensors or model.safetensors.index.json, found neither", folder.string());
  read_sharded(folder, index, directory);
}

}  // namespace ef
