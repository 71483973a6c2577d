// The GGUF parser: header, metadata, tensor table of one file. Splits are followed in gguf_split.cpp.
#include "expertflow/weights/gguf.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "expertflow/base/align.h"
#include "expertflow/base/errors.h"
#include "expertflow/weights/checked.h"
#include "expertflow/weights/header_reader.h"

namespace ef {
namespace {

using Type = GgufValue::Type;

// Far above what models need (vocabularies have 262k strings and 515k merges, names 64 bytes), far below what hurts.
constexpr uint64_t kMaxHeader = 256u << 20;
constexpr uint64_t kMaxString = 64u << 20;
constexpr uint64_t kMaxArray = 16u << 20;
constexpr uint64_t kMaxKey = 65535;
constexpr uint64_t kMaxName = 1024;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kLeastEntry = 8 + 1 + 4 + 1;       // key length, key, type, value
constexpr uint64_t kLeastTensor = 8 + 1 + 4 + 4 + 8;  // name length, name, dimension count, type, offset

int64_t to_int64(const HeaderReader& in, uint64_t value) {
  EF_CHECK(value <= uint64_t(std::numeric_limits<int64_t>::max()), ModelError,
           "{}: {}: expected elements below 2^63, found {}", in.file(), in.where(), value);
  return int64_t(value);
}

bool read_bool(HeaderReader& in) {
  const auto byte = in.scalar<uint8_t>("bool");
  EF_CHECK(byte <= 1, ModelError, "{}: {}: expected a bool of 0 or 1, found {}", in.file(), in.where(), byte);
  return byte != 0;
}

template <class T, class Stored>
std::vector<Stored> read_numbers(HeaderReader& in, uint64_t count) {
  std::vector<Stored> out;
  out.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, uint64_t>) {
      out.push_back(to_int64(in, in.scalar<T>("element")));
    } else if constexpr (std::is_same_v<T, bool>) {
      out.push_back(read_bool(in));
    } else {
      out.push_back(Stored(in.scalar<T>("element")));
    }
  }
  return out;
}

std::vector<std::string> read_strings(HeaderReader& in, uint64_t count) {
  std::vector<std::string> out;
  out.reserve(count);
  for (uint64_t i = 0; i < count; ++i) out.push_back(in.string("string", kMaxString));
  return out;
}

/// Bytes of the smallest element of a type in the file; 0 for types that arrays cannot hold.
uint64_t least_bytes(Type type) {
  switch (type) {
    case Type::kU8:
    case Type::kI8:
    case Type::kBool:
      return 1;
    case Type::kU16:
    case Type::kI16:
      return 2;
    case Type::kU32:
    case Type::kI32:
    case Type::kF32:
      return 4;
    case Type::kU64:
    case Type::kI64:
    case Type::kF64:
    case Type::kString:
      return 8;
    case Type::kArray:
      break;
  }
  return 0;
}

void read_array(HeaderReader& in, GgufValue& value) {
  value.element = Type(in.scalar<uint32_t>("element type"));
  EF_CHECK(value.element != Type::kArray, ModelError,
           "{}: {}: expected an array of plain values, found an array of arrays", in.file(), in.where());
  const uint64_t element_bytes = least_bytes(value.element);
  EF_CHECK(element_bytes != 0, ModelError, "{}: {}: expected an element type from 0 to 12, found {}", in.file(),
           in.where(), uint32_t(value.element));
  const auto count = in.scalar<uint64_t>("array length");
  in.need_items(count, element_bytes, "array elements");
  EF_CHECK(count <= kMaxArray, ModelError, "{}: {}: expected at most {} array elements, found {}", in.file(),
           in.where(), kMaxArray, count);
  switch (value.element) {
    case Type::kU8:
      value.value = read_numbers<uint8_t, int64_t>(in, count);
      break;
    case Type::kI8:
      value.value = read_numbers<int8_t, int64_t>(in, count);
      break;
    case Type::kU16:
      value.value = read_numbers<uint16_t, int64_t>(in, count);
      break;
    case Type::kI16:
      value.value = read_numbers<int16_t, int64_t>(in, count);
      break;
    case Type::kU32:
      value.value = read_numbers<uint32_t, int64_t>(in, count);
      break;
    case Type::kI32:
      value.value = read_numbers<int32_t, int64_t>(in, count);
      break;
    case Type::kU64:
      value.value = read_numbers<uint64_t, int64_t>(in, count);
      break;
    case Type::kI64:
      value.value = read_numbers<int64_t, int64_t>(in, count);
      break;
    case Type::kBool:
      value.value = read_numbers<bool, int64_t>(in, count);
      break;
    case Type::kF32:
      value.value = read_numbers<float, double>(in, count);
      break;
    case Type::kF64:
      value.value = read_numbers<double, double>(in, count);
      break;
    case Type::kString:
      value.value = read_strings(in, count);
      break;
    case Type::kArray:
      break;  // refused above
  }
}

GgufValue read_value(HeaderReader& in) {
  GgufValue value;
  value.type = Type(in.scalar<uint32_t>("value type"));
  switch (value.type) {
    case Type::kU8:
      value.value = int64_t(in.scalar<uint8_t>("value"));
      break;
    case Type::kI8:
      value.value = int64_t(in.scalar<int8_t>("value"));
      break;
    case Type::kU16:
      value.value = int64_t(in.scalar<uint16_t>("value"));
      break;
    case Type::kI16:
      value.value = int64_t(in.scalar<int16_t>("value"));
      break;
    case Type::kU32:
      value.value = int64_t(in.scalar<uint32_t>("value"));
      break;
    case Type::kI32:
      value.value = int64_t(in.scalar<int32_t>("value"));
      break;
    case Type::kU64:
      value.value = in.scalar<uint64_t>("value");
      break;
    case Type::kI64:
      value.value = in.scalar<int64_t>("value");
      break;
    case Type::kF32:
      value.value = double(in.scalar<float>("value"));
      break;
    case Type::kF64:
      value.value = in.scalar<double>("value");
      break;
    case Type::kBool:
      value.value = read_bool(in);
      break;
    case Type::kString:
      value.value = in.string("string", kMaxString);
      break;
    case Type::kArray:
      read_array(in, value);
      break;
    default:
      fail<ModelError>("{}: {}: expected a value type from 0 to 12, found {}", in.file(), in.where(),
                       uint32_t(value.type));
  }
  return value;
}

uint32_t read_magic_and_version(HeaderReader& in) {
  static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they lie in the file");
  char magic[4];
  for (char& c : magic) c = in.scalar<char>("magic");
  const std::string_view text(magic, 4);
  EF_CHECK(text == "GGUF", ModelError, "{}: expected the magic GGUF, found {}{}", in.file(), printable(text),
           guess_content(text));
  const auto version = in.scalar<uint32_t>("version");
  EF_CHECK(
      (version & 0xffff) != 0 || version == 0, ModelError,
      "{}: expected a little-endian GGUF, found a big-endian one (version {}): convert it with gguf_convert_endian.py",
      in.file(), __builtin_bswap32(version));
  EF_CHECK(version != 1, ModelError,
           "{}: expected GGUF version 2 or 3, found version 1 (2023, before MoE models): convert the model again",
           in.file());
  EF_CHECK(version == 2 || version == 3, ModelError, "{}: expected GGUF version 2 or 3, found version {}", in.file(),
           version);
  return version;
}

GgufMetadata read_metadata(HeaderReader& in, uint64_t count) {
  GgufMetadata metadata;
  metadata.file = in.file();
  for (uint64_t i = 0; i < count; ++i) {
    in.at("metadata entry", i, count);
    std::string key = in.string("key", kMaxKey);
    EF_CHECK(!key.empty(), ModelError, "{}: {}: expected a key of at least one byte, found length 0", in.file(),
             in.where());
    in.named(key);
    auto [it, inserted] = metadata.values.try_emplace(std::move(key));
    EF_CHECK(inserted, ModelError, "{}: {}: expected each key once, found it twice", in.file(), in.where());
    it->second = read_value(in);
  }
  return metadata;
}

/// Type numbers that ggml defines and this engine does not read, for the message.
std::string_view known_ggml_name(uint32_t type) {
  switch (type) {
    case 9:
      return " (Q8_1)";
    case 15:
      return " (Q8_K)";
    case 16:
      return " (IQ2_XXS)";
    case 17:
      return " (IQ2_XS)";
    case 18:
      return " (IQ3_XXS)";
    case 19:
      return " (IQ1_S)";
    case 21:
      return " (IQ3_S)";
    case 22:
      return " (IQ2_S)";
    case 29:
      return " (IQ1_M)";
    case 34:
      return " (TQ1_0)";
    case 35:
      return " (TQ2_0)";
    case 40:
      return " (NVFP4)";
    default:
      return "";
  }
}

/// offset is left relative to the data section.
TensorInfo read_tensor(HeaderReader& in) {
  TensorInfo tensor;
  tensor.name = in.string("name", kMaxName);
  EF_CHECK(!tensor.name.empty(), ModelError, "{}: {}: expected a name of at least one byte, found length 0", in.file(),
           in.where());
  in.named(tensor.name);
  const std::string name = printable(tensor.name);
  const auto dims = in.scalar<uint32_t>("dimension count");
  EF_CHECK(dims <= kMaxDims, ModelError, "{}: tensor {}: expected at most {} dimensions, found {}", in.file(), name,
           kMaxDims, dims);
  for (uint32_t d = 0; d < dims; ++d) {
    const auto dim = in.scalar<uint64_t>("dimension");
    EF_CHECK(dim != 0, ModelError, "{}: tensor {}: expected at least one element, found dimension {} of size 0",
             in.file(), name, d);
    EF_CHECK(dim <= uint64_t(std::numeric_limits<int64_t>::max()), ModelError,
             "{}: tensor {}: expected dimensions below 2^63, found {}", in.file(), name, dim);
    tensor.shape.push_back(int64_t(dim));
  }
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  const auto type = in.scalar<uint32_t>("type");
  const FormatInfo* format = find_ggml_type(type);
  EF_CHECK(format != nullptr, ModelError,
           "{}: tensor {}: expected a tensor type that this engine reads, found type number {}{}", in.file(), name,
           type, known_ggml_name(type));
  tensor.format = format->format;
  tensor.offset = in.scalar<uint64_t>("offset");
  tensor.bytes = checked_tensor_bytes(in.file(), tensor.name, tensor.format, tensor.shape);
  return tensor;
}

/// Where another GGUF begins right behind this one, it is a file of shards joined with cat.
void refuse_joined_shards(const ByteSource& source, uint64_t end) {
  if (source.size() < end || source.size() - end < 8) return;
  char magic[4];
  source.read(end, std::as_writable_bytes(std::span(magic)));
  EF_CHECK(std::string_view(magic, 4) != "GGUF", ModelError,
           "{}: expected one GGUF file, found another one joined to it at offset {}: shards cannot be joined with cat; "
           "keep them as separate "
           "files (NAME-00001-of-0000N.gguf) or merge them with llama-gguf-split --merge",
           source.name(), end);
}

/// Checks the data ranges against each other and the file, and makes the offsets absolute.
void place_tensors(const ByteSource& source, std::vector<TensorInfo>& tensors, uint64_t header_end,
                   uint64_t alignment) {
  const uint64_t start = round_up(header_end, alignment);
  const uint64_t available = source.size() > start ? source.size() - start : 0;
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tensors[a].offset < tensors[b].offset; });
  uint64_t expected = 0;
  const TensorInfo* before = nullptr;
  for (size_t i : order) {
    TensorInfo& tensor = tensors[i];
    const std::string name = printable(tensor.name);
    EF_CHECK(tensor.offset % alignment == 0, ModelError,
             "{}: tensor {}: expected an offset that is a multiple of {}, found {}", source.name(), name, alignment,
             tensor.offset);
    EF_CHECK(tensor.bytes <= available && tensor.offset <= available - tensor.bytes, ModelError,
             "{}: tensor {}: expected {} bytes at offset {} of the data section (which begins at {}), found a file of "
             "{} bytes: it is cut "
             "short, or the shape {} is wrong",
             source.name(), name, tensor.bytes, tensor.offset, start, source.size(), tensor.shape_text());
    EF_CHECK(tensor.offset == expected, ModelError, "{}: tensor {}: expected offset {} ({}), found {}: {}",
             source.name(), name, expected,
             before ? "behind tensor " + printable(before->name) : "the beginning of the data", tensor.offset,
             tensor.offset < expected ? "they overlap" : "there is a hole before it");
    expected = round_up(tensor.offset + tensor.bytes, alignment);
    before = &tensor;
  }
  for (TensorInfo& tensor : tensors) tensor.offset += start;
  refuse_joined_shards(source, start + expected);
}

}  // namespace

uint32_t gguf_alignment(const GgufMetadata& metadata) {
  constexpr std::string_view kKey = "general.alignment";
  const GgufValue* value = metadata.find(kKey);
  if (value == nullptr) return 32;
  EF_CHECK(value->type == Type::kU32, ModelError, "{}: metadata key {}: expected a u32, found type {}", metadata.file,
           kKey, gguf_type_name(value->type));
  const auto alignment = uint32_t(std::get<int64_t>(value->value));
  EF_CHECK(std::has_single_bit(alignment), ModelError, "{}: metadata key {}: expected a power of two, found {}",
           metadata.file, kKey, alignment);
  return alignment;
}

GgufHeader parse_gguf(const ByteSource& source, std::vector<TensorInfo>& tensors) {
  HeaderReader in(source, kMaxHeader);
  GgufHeader header;
  header.version = read_magic_and_version(in);
  const auto tensor_count = in.scalar<uint64_t>("tensor count");
  const auto entry_count = in.scalar<uint64_t>("metadata count");
  in.need_items(tensor_count, kLeastTensor, "tensors");
  in.need_items(entry_count, kLeastEntry, "metadata entries");
  header.metadata = read_metadata(in, entry_count);
  header.alignment = gguf_alignment(header.metadata);
  in.at("header", 0, 0);
  in.need_items(tensor_count, kLeastTensor, "tensors");
  for (uint64_t i = 0; i < tensor_count; ++i) {
    in.at("tensor entry", i, tensor_count);
    tensors.push_back(read_tensor(in));
  }
  place_tensors(source, tensors, in.position(), header.alignment);
  return header;
}

GgufHeader read_gguf_header(std::shared_ptr<const ByteSource> source, TensorDirectory& directory) {
  std::vector<TensorInfo> tensors;
  GgufHeader header = parse_gguf(*source, tensors);
  directory.add_file(std::move(source), std::move(tensors));
  return header;
}

}  // namespace ef
