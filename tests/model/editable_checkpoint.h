// A fixture checkpoint held in memory, to be changed before it is opened: hostile and unusual files without writing
// any.
#pragma once
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "expertflow/base/errors.h"
#include "expertflow/model/arch.h"
#include "expertflow/model/binding.h"
#include "expertflow/quant/scalars.h"
#include "expertflow/weights/checkpoint.h"

namespace ef::testing {

inline std::filesystem::path hf_fixture(const std::string& name) {
  return std::filesystem::path(EF_FIXTURES) / "hf" / name;
}
inline std::filesystem::path gguf_fixture(const std::string& name) {
  return std::filesystem::path(EF_FIXTURES) / "gguf" / (name + ".gguf");
}

class OwnedSource final : public ByteSource {
 public:
  OwnedSource(std::string name, std::vector<std::byte> bytes) : name_(std::move(name)), bytes_(std::move(bytes)) {}
  const std::string& name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset)
      fail<DeviceError>("{}: short read at offset {}", name_, offset);
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  std::string name_;
  std::vector<std::byte> bytes_;
};

struct EditableTensor {
  Format format = Format::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

inline std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() * sizeof(float));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

struct EditableCheckpoint {
  Checkpoint::Kind kind = Checkpoint::Kind::kHuggingFace;
  std::filesystem::path path;
  nlohmann::json config, generation_config;
  GgufHeader gguf;
  std::map<std::string, EditableTensor> tensors;

  explicit EditableCheckpoint(const std::filesystem::path& from) {
    Checkpoint c = open_checkpoint(from);
    kind = c.kind, path = c.path, config = c.config, generation_config = c.generation_config, gguf = c.gguf;
    for (const TensorInfo& t : c.directory.tensors()) tensors[t.name] = {t.format, t.shape, c.directory.read(t)};
  }

  EditableTensor take(const std::string& name) {
    auto it = tensors.find(name);
    if (it == tensors.end()) throw std::out_of_range("no tensor " + name);
    EditableTensor out = std::move(it->second);
    tensors.erase(it);
    return out;
  }

  void put_f32(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    tensors[name] = {Format::kF32, std::move(shape), bytes_of(values)};
  }

  void set(const std::string& key, int64_t value) {
    gguf.metadata.values[key] = GgufValue{GgufValue::Type::kU32, GgufValue::Type::kU32, value};
  }
  void set_number(const std::string& key, double value) {
    gguf.metadata.values[key] = GgufValue{GgufValue::Type::kF32, GgufValue::Type::kF32, value};
  }
  void set_text(const std::string& key, const std::string& value) {
    gguf.metadata.values[key] = GgufValue{GgufValue::Type::kString, GgufValue::Type::kString, value};
  }
  void set_list(const std::string& key, std::vector<int64_t> value) {
    gguf.metadata.values[key] = GgufValue{GgufValue::Type::kArray, GgufValue::Type::kI32, std::move(value)};
  }
  void erase(const std::string& key) { gguf.metadata.values.erase(key); }

  Checkpoint build() const {
    Checkpoint out;
    out.kind = kind, out.path = path, out.config = config, out.generation_config = generation_config, out.gguf = gguf;
    std::vector<std::byte> all;
    std::vector<TensorInfo> infos;
    for (const auto& [name, t] : tensors) {
      all.resize((all.size() + 31) / 32 * 32);
      infos.push_back({name, t.format, t.shape, 0, all.size(), t.bytes.size()});
      all.insert(all.end(), t.bytes.begin(), t.bytes.end());
    }
    out.directory.add_file(std::make_shared<OwnedSource>((path / "memory").string(), std::move(all)), std::move(infos));
    return out;
  }
};

inline Config config_of(const Checkpoint& c) { return read_config(find_architecture(c), c); }
inline Config config_of(const EditableCheckpoint& e) { return config_of(e.build()); }
inline Binding binding_of(const Checkpoint& c) {
  const Architecture& arch = find_architecture(c);
  return bind(arch, read_config(arch, c), c);
}
inline Binding binding_of(const EditableCheckpoint& e) { return binding_of(e.build()); }

/// The message of the ModelError that f throws; "" if it throws none.
template <class F>
std::string model_error(const F& f) {
  try {
    f();
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

}  // namespace ef::testing

/// The message must hold every given part.
#define EXPECT_MODEL_ERROR(statement, ...)                                                                  \
  do {                                                                                                      \
    const std::string ef_message = ef::testing::model_error([&] { statement; });                            \
    EXPECT_FALSE(ef_message.empty()) << "no ModelError";                                                    \
    for (const char* ef_part : {__VA_ARGS__})                                                               \
      EXPECT_NE(ef_message.find(ef_part), std::string::npos) << "\"" << ef_part << "\" in: " << ef_message; \
  } while (0)
