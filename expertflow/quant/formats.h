// Storage formats of weights: a block of numbers, its size rule, and the reference conversion to and from float32.
// formats.cpp holds the one table; each format's code is one header beside it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ef {

enum class Format : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,  ///< one byte an element; the 128x128 block scales are a tensor of their own (MatrixView::scales)
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIQ4NL,
  kIQ4XS,
  kMXFP4,
  kU8,
  kI8,
  kI16,
  kI32,
  kI64,
  kF64,  ///< read for metadata tensors; no arithmetic on them
  kCount
};

/// One row of the table. Sizes follow the GGUF definition of each block.
struct FormatInfo {
  Format format;
  std::string_view name;               ///< as users write it: "Q4_K", "BF16"
  int block_elements;                  ///< numbers in a block
  int block_bytes;                     ///< bytes of a block
  int ggml_type;                       ///< type number in GGUF files, -1 if GGUF has none
  std::string_view safetensors_dtype;  ///< dtype in safetensors files, "" if none
  /// Both null for formats without arithmetic. n is a multiple of block_elements. kF8E4M3 here is without scales.
  void (*dequantize)(const std::byte* blocks, float* out, int64_t n);
  /// The scalar formats keep NaN and infinity as far as they have them (scalars.h). Block formats read NaN as 0 and
  /// infinity as the largest float of its sign; numbers past what a block can hold saturate. An all-zero block is
  /// stored as zeros.
  void (*quantize)(const float* in, std::byte* blocks, int64_t n);
};

const FormatInfo& format_info(Format format);
std::span<const FormatInfo> all_formats();
/// nullptr if unknown. Names compare without case.
const FormatInfo* find_format(std::string_view name);
const FormatInfo* find_ggml_type(int64_t type);
const FormatInfo* find_safetensors_dtype(std::string_view dtype);

inline bool has_arithmetic(Format f) { return format_info(f).dequantize != nullptr; }
/// Bytes of n elements in a row; n must be a multiple of the block (checked by readers, asserted here).
uint64_t row_bytes(Format format, int64_t n);

/// How a matrix's bytes lie: row after row, or rows interleaved by sixteen (tiles.h).
enum class MatrixLayout : uint8_t { kRows, kTiles16 };

/// A view of a row-major matrix in storage format: `rows` output features of `cols` input features each.
/// In the rows layout row r begins at data + r * row_bytes(format, cols). Does not own.
struct MatrixView {
  Format format = Format::kF32;
  int64_t rows = 0, cols = 0;
  const std::byte* data = nullptr;
  /// kF8E4M3 only (null: no scales): [ceil(rows/128)][ceil(cols/128)] factors; edge blocks are cropped.
  const float* scales = nullptr;
  MatrixLayout layout = MatrixLayout::kRows;
  explicit operator bool() const { return data != nullptr; }
  uint64_t bytes() const { return uint64_t(rows) * row_bytes(format, cols); }
};

/// Reference: row r of w, in either layout, as float32 into out[cols]; applies block scales of kF8E4M3.
void dequantize_row(const MatrixView& w, int64_t r, float* out);

}  // namespace ef
