// Fuzz target: header of one safetensors file.
#include "expertflow/base/errors.h"
#include "expertflow/weights/safetensors.h"
#include "tests/fuzz/target.h"

bool ef_fuzz::accepts(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    ef::TensorDirectory directory;
    (void)ef::read_safetensors_header(std::make_shared<ef::MemorySource>("fuzz.safetensors", bytes), directory);
    check_directory(directory, size);
    return true;
  } catch (const ef::Error& error) {
    expect(std::string_view(error.what()).find("fuzz.safetensors") != std::string_view::npos,
           "a message without the file's name");
    return false;
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)ef_fuzz::accepts(data, size);
  return 0;
}
