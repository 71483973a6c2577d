// The layout that vector kernels want: sixteen rows side by side, so that a lane is a row. A permutation of a block
// format's bytes, no more and no fewer: rows in whole tiles of sixteen are interleaved field by field, rows that are
// left over stay as they are behind them.
//
// Within a tile a field (the codes, the scales: tile_fields()) of every block is one plane, planes in the table's
// order: plane[block][word][16 rows][width bytes]. Planes of 4-byte words come first, so they start at multiples of 64.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "expertflow/quant/formats.h"

namespace ef {

inline constexpr int64_t kTileRows = 16;

/// Part of a block: `count` words of `width` bytes (1, 2 or 4) from `offset` on.
struct TileField {
  int offset = 0, width = 0, count = 0;
  /// A 4-byte word with a bit an element: bit 4j + b of a row becomes bit 8b + j, so that four elements' bits lie a
  /// byte apart.
  bool spread_bits = false;
};

/// Fields of a block format, all its bytes once; empty for formats without such a layout.
std::span<const TileField> tile_fields(Format format);
inline bool has_tiles(Format format) { return !tile_fields(format).empty(); }

/// From rows to tiles; out has w.bytes() bytes, apart from w's. Rows [begin, end), begin a multiple of 16, end too or
/// w.rows; out is the start of the whole matrix.
void tile_rows(const MatrixView& w, int64_t begin, int64_t end, std::byte* out);
inline void tile_matrix(const MatrixView& w, std::byte* out) { tile_rows(w, 0, w.rows, out); }
/// One row of a matrix in tiles, as it was: row_bytes(w.format, w.cols) bytes.
void untile_row(const MatrixView& w, int64_t row, std::byte* out);

}  // namespace ef
