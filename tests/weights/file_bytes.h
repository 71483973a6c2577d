// Builds GGUF and safetensors files byte by byte from their definitions, independently of the engine's own writers, so
// that tests can also build files that no writer would.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "expertflow/base/errors.h"
#include "expertflow/weights/gguf.h"

namespace ef_test {

namespace fs = std::filesystem;

template <class T>
std::string le(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}
inline std::string le_string(const std::string& text) { return le<uint64_t>(text.size()) + text; }

/// Type numbers of metadata values and tensors, from the GGUF definition.
enum : uint32_t {
  kMetaU8 = 0,
  kMetaU16 = 2,
  kMetaU32 = 4,
  kMetaI32 = 5,
  kMetaF32 = 6,
  kMetaBool = 7,
  kMetaString = 8,
  kMetaArray = 9,
  kMetaU64 = 10
};
enum : uint32_t { kTensorF32 = 0, kTensorF16 = 1, kTensorQ8_0 = 8, kTensorI8 = 24 };

struct GgufBuilder {
  struct Tensor {
    std::string name;
    std::vector<uint64_t> ne;  ///< innermost first, as in the file
    uint32_t type;
    std::string data;
    std::optional<uint64_t> offset;
  };
  uint32_t version = 3;
  uint32_t alignment = 32;
  std::string magic = "GGUF";
  std::optional<uint64_t> tensor_count, entry_count;
  std::vector<std::string> entries;
  std::vector<Tensor> tensors;

  GgufBuilder& raw(const std::string& key, uint32_t type, const std::string& payload) {
    entries.push_back(le_string(key) + le(type) + payload);
    return *this;
  }
  GgufBuilder& u32(const std::string& key, uint32_t v) { return raw(key, kMetaU32, le(v)); }
  GgufBuilder& str(const std::string& key, const std::string& v) { return raw(key, kMetaString, le_string(v)); }
  GgufBuilder& array(const std::string& key, uint32_t element, uint64_t count, const std::string& payload) {
    return raw(key, kMetaArray, le(element) + le(count) + payload);
  }
  GgufBuilder& tensor(const std::string& name, std::vector<uint64_t> ne, uint32_t type, std::string data,
                      std::optional<uint64_t> offset = {}) {
    tensors.push_back({name, std::move(ne), type, std::move(data), offset});
    return *this;
  }
  /// An F32 tensor with the values 0, 1, 2 ...
  GgufBuilder& f32(const std::string& name, std::vector<uint64_t> ne, std::optional<uint64_t> offset = {}) {
    uint64_t n = 1;
    for (uint64_t d : ne) n *= d;
    std::string data;
    for (uint64_t i = 0; i < n; ++i) data += le(float(i));
    return tensor(name, std::move(ne), kTensorF32, data, offset);
  }

  std::string build() const {
    std::string out =
        magic + le(version) + le(tensor_count.value_or(tensors.size())) + le(entry_count.value_or(entries.size()));
    for (const std::string& entry : entries) out += entry;
    std::string data;
    for (const Tensor& t : tensors) {
      data.resize((data.size() + alignment - 1) / alignment * alignment, '\0');
      out += le_string(t.name) + le(uint32_t(t.ne.size()));
      for (uint64_t d : t.ne) out += le(d);
      out += le(t.type) + le(t.offset.value_or(data.size()));
      data += t.data;
    }
    if (!data.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data;
  }
};

/// A small complete file: two keys, three tensors.
inline GgufBuilder small_gguf() {
  GgufBuilder b;
  b.str("general.architecture", "qwen3moe").u32("qwen3moe.block_count", 1);
  b.f32("token_embd.weight", {4, 3}).f32("blk.0.ffn_up_exps.weight", {2, 3, 4}).f32("output_norm.weight", {4});
  return b;
}

inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return le<uint64_t>(header.size()) + header + data;
}

inline std::shared_ptr<const ef::ByteSource> memory(const std::string& bytes, const std::string& name = "hostile.bin") {
  return std::make_shared<ef::MemorySource>(name, std::as_bytes(std::span(bytes)));
}

/// The message of the ModelError that f throws; a failure if it throws nothing or something else.
template <class F>
std::string model_error(F&& f) {
  try {
    f();
  } catch (const ef::ModelError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no exception";
  return "";
}

inline std::string gguf_error(const std::string& bytes) {
  ef::TensorDirectory directory;
  return model_error([&] { ef::read_gguf_header(memory(bytes, "hostile.gguf"), directory); });
}

/// All parts occur in the message.
inline ::testing::AssertionResult mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (message.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << message;
  }
  return ::testing::AssertionSuccess();
}

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "ef_weights_XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TempFolder() { fs::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  fs::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  fs::path path_;
};

inline std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace ef_test
