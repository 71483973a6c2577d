// Arithmetic and text from files that may be hostile: nothing overflows, nothing unprintable reaches a terminal.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/quant/formats.h"

namespace ef {

/// a * b and a + b, or nothing if the result does not fit.
inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t r;
  return __builtin_mul_overflow(a, b, &r) ? std::nullopt : std::optional(r);
}
inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t r;
  return __builtin_add_overflow(a, b, &r) ? std::nullopt : std::optional(r);
}

/// text for a message: bytes that are not printable ASCII as \xNN, cut after `most` bytes.
std::string printable(std::string_view text, size_t most = 120);

/// "[8, 64, 32]"
std::string shape_text(const std::vector<int64_t>& shape);

/// Bytes of a row-major tensor. ModelError (naming file and tensor) if a dimension is negative, the product of the
/// dimensions overflows, or the innermost one is not a whole number of blocks. A dimension of 0 gives 0 bytes.
uint64_t checked_tensor_bytes(const std::string& file, std::string_view tensor, Format format,
                              const std::vector<int64_t>& shape);

/// What a first look at the bytes says a wrong file is (" (looks like ...)"), or "".
std::string guess_content(std::string_view first_bytes);

}  // namespace ef
