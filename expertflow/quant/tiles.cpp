#include "expertflow/quant/tiles.h"

#include <array>
#include <cstring>
#include <vector>

#include "expertflow/base/errors.h"
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

namespace ef {
namespace {

#define EF_AT(block, member) int(offsetof(block, member))
constexpr TileField kQ8_0[] = {{EF_AT(BlockQ8_0, qs), 4, 8}, {EF_AT(BlockQ8_0, d), 2, 1}};
constexpr TileField kQ4_0[] = {{EF_AT(BlockQ4_0, qs), 4, 4}, {EF_AT(BlockQ4_0, d), 2, 1}};
constexpr TileField kQ4_1[] = {{EF_AT(BlockQ4_1, qs), 4, 4}, {EF_AT(BlockQ4_1, d), 2, 2}};
constexpr TileField kQ5_0[] = {
    {EF_AT(BlockQ5_0, qs), 4, 4}, {EF_AT(BlockQ5_0, qh), 4, 1, true}, {EF_AT(BlockQ5_0, d), 2, 1}};
constexpr TileField kQ5_1[] = {
    {EF_AT(BlockQ5_1, qs), 4, 4}, {EF_AT(BlockQ5_1, qh), 4, 1, true}, {EF_AT(BlockQ5_1, d), 2, 2}};
constexpr TileField kQ2K[] = {
    {EF_AT(BlockQ2_K, qs), 4, 16}, {EF_AT(BlockQ2_K, scales), 4, 4}, {EF_AT(BlockQ2_K, d), 2, 2}};
constexpr TileField kQ3K[] = {{EF_AT(BlockQ3_K, qs), 4, 16},
                              {EF_AT(BlockQ3_K, hmask), 4, 8},
                              {EF_AT(BlockQ3_K, scales), 4, 3},
                              {EF_AT(BlockQ3_K, d), 2, 1}};
constexpr TileField kQ4K[] = {
    {EF_AT(BlockQ4_K, qs), 4, 32}, {EF_AT(BlockQ4_K, scales), 4, 3}, {EF_AT(BlockQ4_K, d), 2, 2}};
constexpr TileField kQ5K[] = {{EF_AT(BlockQ5_K, qs), 4, 32},
                              {EF_AT(BlockQ5_K, qh), 4, 8},
                              {EF_AT(BlockQ5_K, scales), 4, 3},
                              {EF_AT(BlockQ5_K, d), 2, 2}};
constexpr TileField kQ6K[] = {{EF_AT(BlockQ6_K, ql), 4, 32},
                              {EF_AT(BlockQ6_K, qh), 4, 16},
                              {EF_AT(BlockQ6_K, scales), 4, 4},
                              {EF_AT(BlockQ6_K, d), 2, 1}};
constexpr TileField kIQ4NL[] = {{EF_AT(BlockIQ4_NL, qs), 4, 4}, {EF_AT(BlockIQ4_NL, d), 2, 1}};
constexpr TileField kIQ4XS[] = {
    {EF_AT(BlockIQ4_XS, qs), 4, 32}, {EF_AT(BlockIQ4_XS, scales_l), 4, 1}, {EF_AT(BlockIQ4_XS, d), 2, 2}};
constexpr TileField kMXFP4[] = {{EF_AT(BlockMXFP4, qs), 4, 4}, {EF_AT(BlockMXFP4, e), 1, 1}};
#undef EF_AT

struct Row {
  Format format;
  std::span<const TileField> fields;
};
constexpr Row kTable[] = {
    {Format::kQ8_0, kQ8_0},   {Format::kQ4_0, kQ4_0}, {Format::kQ4_1, kQ4_1},   {Format::kQ5_0, kQ5_0},
    {Format::kQ5_1, kQ5_1},   {Format::kQ2K, kQ2K},   {Format::kQ3K, kQ3K},     {Format::kQ4K, kQ4K},
    {Format::kQ5K, kQ5K},     {Format::kQ6K, kQ6K},   {Format::kIQ4NL, kIQ4NL}, {Format::kIQ4XS, kIQ4XS},
    {Format::kMXFP4, kMXFP4},
};

// 8 x 4 bits to 4 x 8 bits.
uint32_t spread(uint32_t bits) {
  uint32_t out = 0;
  for (int i = 0; i < 32; ++i) out |= (bits >> i & 1) << (8 * (i % 4) + i / 4);
  return out;
}
uint32_t gather(uint32_t bits) {
  uint32_t out = 0;
  for (int i = 0; i < 32; ++i) out |= (bits >> (8 * (i % 4) + i / 4) & 1) << i;
  return out;
}

// Bytes go from sixteen rows of blocks to the planes of a tile. kWidth is a constant so that a word is one move.
template <int kWidth>
void interleave(const TileField& f, const std::byte* rows, uint64_t row_bytes, int block_bytes, int64_t blocks,
                std::byte* plane) {
  for (int64_t b = 0; b < blocks; ++b)
    for (int word = 0; word < f.count; ++word, plane += kTileRows * kWidth) {
      const std::byte* from = rows + b * block_bytes + f.offset + word * kWidth;
      for (int64_t r = 0; r < kTileRows; ++r) std::memcpy(plane + r * kWidth, from + uint64_t(r) * row_bytes, kWidth);
    }
}

void spread_words(std::byte* plane, int64_t words) {
  for (int64_t i = 0; i < words; ++i) {
    uint32_t bits;
    std::memcpy(&bits, plane + 4 * i, 4);
    bits = spread(bits);
    std::memcpy(plane + 4 * i, &bits, 4);
  }
}

}  // namespace

std::span<const TileField> tile_fields(Format format) {
  for (const Row& row : kTable)
    if (row.format == format) return row.fields;
  return {};
}

void tile_rows(const MatrixView& w, int64_t begin, int64_t end, std::byte* out) {
  const auto fields = tile_fields(w.format);
  const FormatInfo& info = format_info(w.format);
  EF_DCHECK(!fields.empty() && w.layout == MatrixLayout::kRows && begin % kTileRows == 0);
  const uint64_t row = row_bytes(w.format, w.cols);
  const int64_t blocks = w.cols / info.block_elements;
  int64_t r = begin;
  for (; r + kTileRows <= end; r += kTileRows) {
    const std::byte* rows = w.data + uint64_t(r) * row;
    std::byte* plane = out + uint64_t(r) * row;
    for (const TileField& f : fields) {
      if (f.width == 4)
        interleave<4>(f, rows, row, info.block_bytes, blocks, plane);
      else if (f.width == 2)
        interleave<2>(f, rows, row, info.block_bytes, blocks, plane);
      else
        interleave<1>(f, rows, row, info.block_bytes, blocks, plane);
      if (f.spread_bits) spread_words(plane, blocks * f.count * kTileRows);
      plane += blocks * f.count * f.width * kTileRows;
    }
  }
  if (r < end) std::memcpy(out + uint64_t(r) * row, w.data + uint64_t(r) * row, uint64_t(end - r) * row);
}

void untile_row(const MatrixView& w, int64_t row, std::byte* out) {
  const FormatInfo& info = format_info(w.format);
  const uint64_t bytes = row_bytes(w.format, w.cols);
  const int64_t tile = row / kTileRows * kTileRows, lane = row % kTileRows;
  EF_DCHECK(w.layout == MatrixLayout::kTiles16 && row >= 0 && row < w.rows);
  if (tile + kTileRows > w.rows) {
    std::memcpy(out, w.data + uint64_t(row) * bytes, bytes);
    return;
  }
  const int64_t blocks = w.cols / info.block_elements;
  const std::byte* plane = w.data + uint64_t(tile) * bytes;
  for (const TileField& f : tile_fields(w.format)) {
    for (int64_t b = 0; b < blocks; ++b)
      for (int word = 0; word < f.count; ++word) {
        const size_t width = size_t(f.width);
        std::byte* to = out + b * info.block_bytes + f.offset + word * f.width;
        std::memcpy(to, plane + size_t((b * f.count + word) * kTileRows + lane) * width, width);
        if (!f.spread_bits) continue;
        uint32_t bits;
        std::memcpy(&bits, to, 4);
        bits = gather(bits);
        std::memcpy(to, &bits, 4);
      }
    plane += blocks * f.count * f.width * kTileRows;
  }
}

}  // namespace ef
