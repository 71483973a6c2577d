// GGUF v2 and v3. Definition: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
// Split files ("-00001-of-0000N.gguf", split.no/.count/.tensors.count) open by any of their shards.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "expertflow/weights/tensor_directory.h"

namespace ef {

/// A metadata value. Signed integers and unsigned ones below 64 bits are int64_t, u64 is uint64_t, floats are double;
/// arrays of integers and bools are vector<int64_t>. Arrays are homogeneous; nested arrays are refused by name.
struct GgufValue {
  enum class Type : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
  Type type = Type::kU32;
  Type element = Type::kU32;  ///< arrays only
  std::variant<int64_t, uint64_t, double, bool, std::string, std::vector<int64_t>, std::vector<double>,
               std::vector<std::string>>
      value;
};

std::string_view gguf_type_name(GgufValue::Type type);  ///< "u32", "string"

/// Metadata with typed access. Every getter names the key, the file, the type expected and the type found in its
/// ModelError.
class GgufMetadata {
 public:
  bool contains(std::string_view key) const;
  const GgufValue* find(std::string_view key) const;
  std::string str(std::string_view key) const;  ///< ModelError if absent
  int64_t integer(std::string_view key) const;  ///< any integer type; ModelError if absent or not integral
  double number(std::string_view key) const;    ///< any numeric type
  bool boolean(std::string_view key) const;
  std::string str_or(std::string_view key,
                     std::string_view otherwise) const;  ///< the default only if absent; a wrong type throws
  int64_t integer_or(std::string_view key, int64_t otherwise) const;
  double number_or(std::string_view key, double otherwise) const;
  bool boolean_or(std::string_view key, bool otherwise) const;
  std::vector<std::string> strings(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;

  std::map<std::string, GgufValue, std::less<>> values;
  std::string file;  ///< for messages
};

struct GgufHeader {
  uint32_t version = 3;
  uint32_t alignment = 32;
  GgufMetadata metadata;
};

/// general.alignment: 32 if absent; ModelError unless it is a u32 and a power of two.
uint32_t gguf_alignment(const GgufMetadata& metadata);

/// Parses one file's header and tensor table; tensors get absolute offsets, their `file` is left 0. Split keys are not
/// followed. Checked before anything is allocated: counts and lengths against the bytes that remain, sizes against
/// overflow, data ranges against the file; tensors must follow each other without overlap and without holes beyond
/// alignment. ModelError names file, tensor or key, expected and found.
GgufHeader parse_gguf(const ByteSource& source, std::vector<TensorInfo>& tensors);

/// parse_gguf into the directory.
GgufHeader read_gguf_header(std::shared_ptr<const ByteSource> source, TensorDirectory& directory);

/// ModelError with advice if the name is that of a byte-wise part (NAME.gguf.part1of2, NAME.gguf-split-a).
void refuse_gguf_part(const std::filesystem::path& path);

/// The name of the first shard where a name is one of a split file's, else the name.
std::string first_shard(const std::string& path);

/// Opens a GGUF given any of its shards (or the only file); the metadata is the first shard's.
GgufHeader read_gguf(const std::filesystem::path& path, TensorDirectory& directory);

}  // namespace ef
