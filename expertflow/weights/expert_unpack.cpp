// From raw file bytes to the kernels' layout, a piece at a time.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "expertflow/base/errors.h"
#include "expertflow/quant/mxfp4.h"
#include "expertflow/quant/scalars.h"
#include "expertflow/quant/tiles.h"
#include "expertflow/weights/expert_plan.h"

namespace ef {

namespace {

bool is_bias(ExpertRole role) {
  return role == ExpertRole::kGateBias || role == ExpertRole::kUpBias || role == ExpertRole::kDownBias;
}

// Where the piece's first row lies, of those whose file row piece.file_row is at `from`.
const std::byte* first_row(const FillPiece& piece, const std::byte* from, const PartSource& source,
                           const ExpertPart& part) {
  const int64_t first = source.row_begin + piece.row_begin * source.row_step - piece.file_row;
  return from + uint64_t(first) * row_bytes(part.format, part.cols);
}

// In all of these `to` is where the piece's first row goes.
void copy_rows(const FillPiece& piece, const std::byte* from, const PartSource& source, const ExpertPart& part,
               std::byte* to) {
  const uint64_t row = row_bytes(part.format, part.cols);
  from = first_row(piece, from, source, part);
  if (source.row_step == 1) {
    std::memcpy(to, from, uint64_t(piece.rows) * row);
    return;
  }
  for (int64_t r = 0; r < piece.rows; ++r)
    std::memcpy(to + uint64_t(r) * row, from + uint64_t(r * source.row_step) * row, row);
}

template <size_t kWidth>
void transpose(const std::byte* from, int64_t file_rows, const PartSource& source, const ExpertPart& part,
               std::byte* to) {
  // Tiles keep both sides in cache: one side is always read or written across rows.
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < part.rows; r0 += kTile)
    for (int64_t c0 = 0; c0 < part.cols; c0 += kTile)
      for (int64_t r = r0; r < std::min(part.rows, r0 + kTile); ++r)
        for (int64_t c = c0; c < std::min(part.cols, c0 + kTile); ++c)
          std::memcpy(to + size_t(r * part.cols + c) * kWidth,
                      from + size_t(c * file_rows + source.row_begin + r * source.row_step) * kWidth, kWidth);
}

void fill_transposed(const std::byte* from, const PartSource& source, const ExpertPart& part, std::byte* to) {
  const int64_t file_rows = source.tensor.cols();
  if (format_info(part.format).block_bytes == 2)
    transpose<2>(from, file_rows, source, part, to);
  else
    transpose<4>(from, file_rows, source, part, to);
}

// nibbles, scales: those of the file's row piece.file_row.
void fill_mxfp4(const FillPiece& piece, const std::byte* nibbles, const std::byte* scales, const PartSource& source,
                const ExpertPart& part, std::byte* to, const std::string& file) {
  const int64_t blocks = part.cols / BlockMXFP4::kElements;
  for (int64_t r = piece.row_begin; r < piece.row_begin + piece.rows; ++r) {
    const int64_t row = source.row_begin + r * source.row_step, from = (row - piece.file_row) * blocks;
    const auto* row_scales = reinterpret_cast<const uint8_t*>(scales) + from;
    EF_CHECK(std::find(row_scales, row_scales + blocks, uint8_t(255)) == row_scales + blocks, ModelError,
             "{}: tensor {}: scale of expert {}, row {} is NaN (E8M0 255)", file, source.scales.name, source.index,
             row);
    repack_mxfp4(reinterpret_cast<const uint8_t*>(nibbles) + from * 16, row_scales,
                 to + uint64_t((r - piece.row_begin) * blocks) * sizeof(BlockMXFP4), blocks);
  }
}

void fill_f32(const std::byte* from, const PartSource& source, const ExpertPart& part, std::byte* to) {
  const FormatInfo& info = format_info(source.tensor.format);
  const uint64_t bytes = slice_of(source.tensor, source).bytes;
  const int64_t n = int64_t(bytes) / info.block_bytes * info.block_elements;
  std::vector<float> values(static_cast<size_t>(n));
  if (source.tensor.format == Format::kU8)
    for (size_t i = 0; i < values.size(); ++i) values[i] = e8m0_to_f32(uint8_t(from[i]));
  else
    info.dequantize(from, values.data(), n);
  const int64_t wanted = part.rows * part.cols;
  for (int64_t i = 0; i < wanted; ++i)
    std::memcpy(to + size_t(i) * sizeof(float), &values[size_t(source.row_begin + i * source.row_step)], sizeof(float));
}

void check_numbers(const std::byte* at, const PartSource& source, const ExpertPart& part, const std::string& file) {
  const std::span<const float> numbers{reinterpret_cast<const float*>(at), size_t(part.rows * part.cols)};
  if (is_scales(part.role)) check_block_scales(numbers, file, source.tensor.name);
  if (is_bias(part.role))
    for (const float v : numbers)
      EF_CHECK(std::isfinite(v), ModelError, "{}: tensor {}: expected finite numbers, found {}", file,
               source.tensor.name, v);
}

void make_rows(const FillPiece& piece, const std::byte* from, std::span<const std::byte* const> raw,
               const PartSource& source, const ExpertPart& part, std::byte* to, const std::string& file) {
  switch (source.unpack) {
    case Unpack::kRows:
      copy_rows(piece, from, source, part, to);
      break;
    case Unpack::kTransposed:
      fill_transposed(from, source, part, to);
      break;
    case Unpack::kMxfp4Pairs:
      fill_mxfp4(piece, from, raw[1], source, part, to, file);
      break;
    case Unpack::kToF32:
      fill_f32(from, source, part, to);
      check_numbers(to, source, part, file);
      break;
  }
}

}  // namespace

void unpack_piece(const FillPiece& piece, const PartSource& source, const ExpertPart& part,
                  std::span<const std::byte* const> raw, std::byte* slot, const std::string& file) {
  const std::byte* from = raw[0] + piece.raw_offset;
  const uint64_t row = row_bytes(part.format, part.cols);
  std::byte* to = slot + part.offset + uint64_t(piece.row_begin) * row;
  if (part.layout == MatrixLayout::kRows) return make_rows(piece, from, raw, source, part, to, file);
  // A piece begins with a whole tile, and ends with one or with the matrix: it is a matrix of its own to them.
  static_assert(kTileRows == kRowGroup);
  MatrixView rows{part.format, piece.rows, part.cols, nullptr};
  if (source.unpack == Unpack::kRows && source.row_step == 1) {
    rows.data = first_row(piece, from, source, part);
    return tile_matrix(rows, to);
  }
  std::vector<std::byte> plain(uint64_t(piece.rows) * row);
  make_rows(piece, from, raw, source, part, plain.data(), file);
  rows.data = plain.data();
  tile_matrix(rows, to);
}

void change_layout(const ExpertPart& part, MatrixLayout from, std::byte* slot) {
  if (from == part.layout) return;
  // A tile is a permutation of its rows' bytes: one at a time is enough beside the slot.
  const uint64_t row = row_bytes(part.format, part.cols), tile = row * uint64_t(kTileRows);
  std::vector<std::byte> before(tile);
  const MatrixView view{part.format, kTileRows, part.cols, before.data(), nullptr, from};
  std::byte* to = slot + part.offset;
  for (int64_t r = 0; r + kTileRows <= part.rows; r += kTileRows, to += tile) {
    std::memcpy(before.data(), to, tile);
    if (from == MatrixLayout::kRows)
      tile_matrix(view, to);
    else
      for (int64_t lane = 0; lane < kTileRows; ++lane) untile_row(view, lane, to + uint64_t(lane) * row);
  }
}

}  // namespace ef
