#include "expertflow/quant/formats.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "expertflow/base/errors.h"
#include "expertflow/quant/block.h"
#include "expertflow/quant/iq4_nl.h"
#include "expertflow/quant/iq4_xs.h"
#include "expertflow/quant/mxfp4.h"
#include "expertflow/quant/q2_k.h"
#include "expertflow/quant/q3_k.h"
#include "expertflow/quant/q4_0.h"
#include "expertflow/quant/q4_1.h"
#include "expertflow/quant/q4_k.h"
#include "expertflow/quant/q5_0.h"
#include "expertflow/quant/q5_1.h"
#include "expertflow/quant/q5_k.h"
#include "expertflow/quant/q6_k.h"
#include "expertflow/quant/q8_0.h"
#include "expertflow/quant/tiles.h"

namespace ef {
namespace {

template <class Block>
void dequantize_blocks(const std::byte* blocks, float* out, int64_t n) {
  EF_DCHECK(n % Block::kElements == 0);
  for (int64_t i = 0; i < n / Block::kElements; ++i) decode(load_block<Block>(blocks, i), out + i * Block::kElements);
}

template <class Block>
void quantize_blocks(const float* in, std::byte* blocks, int64_t n) {
  EF_DCHECK(n % Block::kElements == 0);
  for (int64_t i = 0; i < n / Block::kElements; ++i) {
    Block b;
    encode(in + i * Block::kElements, b);
    store_block(blocks, i, b);
  }
}

template <class Scalar, float (*kToFloat)(Scalar)>
void widen_scalars(const std::byte* blocks, float* out, int64_t n) {
  // Runs of a fixed length, which compilers turn into vector code.
  constexpr int64_t kRun = 16;
  int64_t i = 0;
  for (; i + kRun <= n; i += kRun) {
    for (int64_t k = 0; k < kRun; ++k) out[i + k] = kToFloat(load_block<Scalar>(blocks, i + k));
  }
  for (; i < n; ++i) out[i] = kToFloat(load_block<Scalar>(blocks, i));
}

template <class Scalar, Scalar (*kFromFloat)(float)>
void narrow_scalars(const float* in, std::byte* blocks, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store_block(blocks, i, kFromFloat(in[i]));
}

void load_f32(const std::byte* blocks, float* out, int64_t n) { std::memcpy(out, blocks, size_t(n) * sizeof(float)); }
void store_f32(const float* in, std::byte* blocks, int64_t n) { std::memcpy(blocks, in, size_t(n) * sizeof(float)); }

template <class Block>
constexpr FormatInfo block_row(Format format, std::string_view name, int ggml_type) {
  return {format,    name, Block::kElements,         int(sizeof(Block)),
          ggml_type, "",   dequantize_blocks<Block>, quantize_blocks<Block>};
}

constexpr FormatInfo storage_row(Format format, std::string_view name, int bytes, int ggml_type) {
  return {format, name, 1, bytes, ggml_type, name, nullptr, nullptr};
}

// Type numbers: ggml.h (enum ggml_type). In the order of enum Format.
constexpr std::array kTable{
    FormatInfo{Format::kF32, "F32", 1, 4, 0, "F32", load_f32, store_f32},
    FormatInfo{Format::kF16, "F16", 1, 2, 1, "F16", widen_scalars<uint16_t, f16_to_f32>,
               narrow_scalars<uint16_t, f32_to_f16>},
    FormatInfo{Format::kBF16, "BF16", 1, 2, 30, "BF16", widen_scalars<uint16_t, bf16_to_f32>,
               narrow_scalars<uint16_t, f32_to_bf16>},
    FormatInfo{Format::kF8E4M3, "F8_E4M3", 1, 1, -1, "F8_E4M3", widen_scalars<uint8_t, e4m3_to_f32>,
               narrow_scalars<uint8_t, f32_to_e4m3>},
    block_row<BlockQ8_0>(Format::kQ8_0, "Q8_0", 8),
    block_row<BlockQ4_0>(Format::kQ4_0, "Q4_0", 2),
    block_row<BlockQ4_1>(Format::kQ4_1, "Q4_1", 3),
    block_row<BlockQ5_0>(Format::kQ5_0, "Q5_0", 6),
    block_row<BlockQ5_1>(Format::kQ5_1, "Q5_1", 7),
    block_row<BlockQ2_K>(Format::kQ2K, "Q2_K", 10),
    block_row<BlockQ3_K>(Format::kQ3K, "Q3_K", 11),
    block_row<BlockQ4_K>(Format::kQ4K, "Q4_K", 12),
    block_row<BlockQ5_K>(Format::kQ5K, "Q5_K", 13),
    block_row<BlockQ6_K>(Format::kQ6K, "Q6_K", 14),
    block_row<BlockIQ4_NL>(Format::kIQ4NL, "IQ4_NL", 20),
    block_row<BlockIQ4_XS>(Format::kIQ4XS, "IQ4_XS", 23),
    block_row<BlockMXFP4>(Format::kMXFP4, "MXFP4", 39),
    storage_row(Format::kU8, "U8", 1, -1),
    storage_row(Format::kI8, "I8", 1, 24),
    storage_row(Format::kI16, "I16", 2, 25),
    storage_row(Format::kI32, "I32", 4, 26),
    storage_row(Format::kI64, "I64", 8, 27),
    storage_row(Format::kF64, "F64", 8, 28),
};

constexpr bool in_enum_order() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (size_t(kTable[i].format) != i) return false;
  }
  return kTable.size() == size_t(Format::kCount);
}
static_assert(in_enum_order());

template <class Predicate>
const FormatInfo* find_row(Predicate&& matches) {
  const auto it = std::find_if(kTable.begin(), kTable.end(), matches);
  return it == kTable.end() ? nullptr : &*it;
}

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// Side of the square blocks that FP8 checkpoints scale together.
constexpr int64_t kScaleBlock = 128;

void apply_block_scales(const MatrixView& w, int64_t r, float* out) {
  const int64_t blocks = (w.cols + kScaleBlock - 1) / kScaleBlock;
  const float* scales = w.scales + r / kScaleBlock * blocks;
  for (int64_t c = 0; c < w.cols; ++c) out[c] *= scales[c / kScaleBlock];
}

}  // namespace

const FormatInfo& format_info(Format format) {
  EF_DCHECK(size_t(format) < kTable.size());
  return kTable[size_t(format)];
}

std::span<const FormatInfo> all_formats() { return kTable; }

const FormatInfo* find_format(std::string_view name) {
  return find_row([=](const FormatInfo& row) { return equal_without_case(row.name, name); });
}

const FormatInfo* find_ggml_type(int64_t type) {
  if (type < 0) return nullptr;
  return find_row([=](const FormatInfo& row) { return row.ggml_type == type; });
}

const FormatInfo* find_safetensors_dtype(std::string_view dtype) {
  if (dtype.empty()) return nullptr;
  return find_row([=](const FormatInfo& row) { return row.safetensors_dtype == dtype; });
}

uint64_t row_bytes(Format format, int64_t n) {
  const FormatInfo& info = format_info(format);
  EF_DCHECK(n >= 0 && n % info.block_elements == 0);
  return uint64_t(n) / uint64_t(info.block_elements) * uint64_t(info.block_bytes);
}

void dequantize_row(const MatrixView& w, int64_t r, float* out) {
  const FormatInfo& info = format_info(w.format);
  EF_DCHECK(info.dequantize && r >= 0 && r < w.rows);
  if (w.layout == MatrixLayout::kTiles16) {
    std::vector<std::byte> row(row_bytes(w.format, w.cols));
    untile_row(w, r, row.data());
    info.dequantize(row.data(), out, w.cols);
    return;
  }
  info.dequantize(w.data + uint64_t(r) * row_bytes(w.format, w.cols), out, w.cols);
  if (w.format == Format::kF8E4M3 && w.scales) apply_block_scales(w, r, out);
}

}  // namespace ef
