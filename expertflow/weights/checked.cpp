#include "expertflow/weights/checked.h"

#include <fmt/ranges.h>

#include "expertflow/base/errors.h"

namespace ef {

std::string printable(std::string_view text, size_t most) {
  std::string out;
  for (char c : text.substr(0, most)) {
    auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > most) out += "...";
  return out;
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

uint64_t checked_tensor_bytes(const std::string& file, std::string_view tensor, Format format,
                              const std::vector<int64_t>& shape) {
  const FormatInfo& info = format_info(format);
  // The product of the other dimensions must fit even if one is 0: rows() and elements() multiply without checks later.
  int64_t product = 1;
  bool empty = false;
  for (int64_t dim : shape) {
    EF_CHECK(dim >= 0, ModelError, "{}: tensor {}: expected dimensions of at least 0, found {}", file,
             printable(tensor), shape_text(shape));
    empty |= dim == 0;
    EF_CHECK(dim == 0 || !__builtin_mul_overflow(product, dim, &product), ModelError,
             "{}: tensor {}: expected a number of elements below 2^63, found shape {}", file, printable(tensor),
             shape_text(shape));
  }
  if (empty) return 0;
  const int64_t cols = shape.empty() ? 1 : shape.back();
  EF_CHECK(cols % info.block_elements == 0, ModelError,
           "{}: tensor {}: expected rows of whole {} blocks ({} elements each), found shape {}", file,
           printable(tensor), info.name, info.block_elements, shape_text(shape));
  auto bytes = checked_mul(uint64_t(product) / uint64_t(info.block_elements), uint64_t(info.block_bytes));
  EF_CHECK(bytes.has_value(), ModelError, "{}: tensor {}: expected a size below 2^64 bytes, found {} of shape {}", file,
           printable(tensor), info.name, shape_text(shape));
  return *bytes;
}

std::string guess_content(std::string_view first) {
  struct Guess {
    std::string_view prefix, text;
  };
  static constexpr Guess kGuesses[] = {
      {"version https://git-lfs", "a Git LFS pointer: the file itself was not downloaded"},
      {"version ", "a Git LFS pointer: the file itself was not downloaded"},
      {"GGUF", "a GGUF file"},
      {"FUGG", "a big-endian GGUF file"},
      {"tjgg", "an old GGJT file, from before GGUF: convert the model again"},
      {"lmgg", "an old GGML file, from before GGUF: convert the model again"},
      {"fmgg", "an old GGMF file, from before GGUF: convert the model again"},
      {"PK\x03\x04", "a zip archive or a PyTorch checkpoint"},
      {"\x80\x02", "a Python pickle"},
      {"<!DOCTYPE", "a web page saved instead of the file"},
      {"<!doctype", "a web page saved instead of the file"},
      {"<html", "a web page saved instead of the file"},
      {"{", "a JSON text"},
  };
  for (const Guess& guess : kGuesses) {
    if (first.substr(0, guess.prefix.size()) == guess.prefix) return fmt::format(" (looks like {})", guess.text);
  }
  // safetensors: a small length, then a brace.
  if (first.size() > 8 && first[8] == '{' && first.substr(4, 4) == std::string_view("\0\0\0\0", 4)) {
    return " (looks like a safetensors file)";
  }
  return "";
}

}  // namespace ef
