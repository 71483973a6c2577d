// Fuzz target: header and tensor table of one GGUF file.
#include "expertflow/base/errors.h"
#include "expertflow/weights/gguf.h"
#include "tests/fuzz/target.h"

bool ef_fuzz::accepts(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    ef::TensorDirectory directory;
    const ef::GgufHeader header =
        ef::read_gguf_header(std::make_shared<ef::MemorySource>("fuzz.gguf", bytes), directory);
    check_directory(directory, size);
    for (const auto& [key, value] : header.metadata.values) {
      if (value.type != ef::GgufValue::Type::kArray) continue;
      if (value.element == ef::GgufValue::Type::kString) (void)header.metadata.strings(key);
    }
    (void)header.metadata.integer_or("split.count", 0);
    return true;
  } catch (const ef::Error& error) {
    expect(std::string_view(error.what()).find("fuzz.gguf") != std::string_view::npos,
           "a message without the file's name");
    return false;
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)ef_fuzz::accepts(data, size);
  return 0;
}
