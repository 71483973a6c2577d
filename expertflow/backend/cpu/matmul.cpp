// Products with weight matrices: linear, head_linear and the experts. Weights are met a tile of rows at a time,
// dequantised once for all rows of x; the order of summation within an element is the kernel's and depends on cols
// alone.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "expertflow/backend/cpu/cpu_ops.h"
#include "expertflow/base/align.h"
#include "expertflow/base/errors.h"
#include "expertflow/quant/tiles.h"

namespace ef::cpu {
namespace {

// A tile of float32 weights stays in a core's second level cache while rows of x pass by.
constexpr int64_t kTileBytes = 256 << 10;
// Elements of 8-bit activations that one pass over a tile of weights meets: they stay in the second level cache.
constexpr int64_t kPassElements = 384 << 10;
// Most elements quantised at once.
constexpr int64_t kQuantizedElements = 4 << 20;
// So few rows of x that reading the weights decides: long runs, nothing converted beforehand.
constexpr int64_t kFewRows = 4;
// Rows of x that are scaled at once for kF8E4M3.
constexpr int64_t kScaledRows = 16;
constexpr int64_t kMinTileRows = 4, kMaxTileRows = 32;
// Less work than this (multiply-adds) is not worth handing to another thread.
constexpr int64_t kTaskWork = 64 << 10;

int64_t tile_rows(int64_t cols) {
  const int64_t fit = kTileBytes / (std::max<int64_t>(1, cols) * 4) / kMinTileRows * kMinTileRows;
  return std::clamp(fit, kMinTileRows, kMaxTileRows);
}

// The loops' own element type of a format; -1 if it has to be dequantised first.
int direct_scalar(Format format) {
  switch (format) {
    case Format::kF32:
      return kScalarF32;
    case Format::kF16:
      return kScalarF16;
    case Format::kBF16:
      return kScalarBF16;
    default:
      return -1;
  }
}

void dequantize(const Kernels& kernels, const MatrixView& w, int64_t row, float* out) {
  const DequantizeFn fast = kernels.dequantize ? kernels.dequantize[int(w.format)] : nullptr;
  if (!fast) return dequantize_row(w, row, out);
  fast(w.data + uint64_t(row) * row_bytes(w.format, w.cols), out, w.cols);
}

}  // namespace

int64_t matmul_scratch(const MatrixView& w) {
  return direct_scalar(w.format) >= 0 ? 0 : (tile_rows(w.cols) + kScaledRows) * w.cols;
}

namespace {

// Rows [begin, end) that lie in whole tiles.
void matmul_tiles(const TileFormat& format, const MatrixView& w, int64_t begin, int64_t end, const float* bias,
                  const RowPointers& rows, int64_t out_begin) {
  EF_DCHECK(rows.quantized && begin % kTileRows == 0 && end % kTileRows == 0);
  TileMatmul tile;
  tile.tile_bytes = kTileRows * int64_t(row_bytes(w.format, w.cols));
  tile.tiles = w.data + begin / kTileRows * tile.tile_bytes;
  tile.tiles_count = (end - begin) / kTileRows;
  tile.blocks = w.cols / format_info(w.format).block_elements;
  tile.bias = bias ? bias + begin : nullptr;
  tile.out_begin = out_begin;
  const int64_t pass = std::max<int64_t>(12, kPassElements / std::max<int64_t>(1, w.cols) / 12 * 12);
  for (int64_t r = 0; r < rows.rows; r += pass) {
    tile.x = rows.quantized + r;
    tile.out = rows.out + r;
    tile.rows = std::min(pass, rows.rows - r);
    format.fn(tile);
  }
}

// kF8E4M3: x takes the block scales of 128 rows of weights, so that these are multiplied as they are.
void matmul_f8(const Kernels& kernels, const MatrixView& w, int64_t begin, int64_t end, const float* bias,
               const RowPointers& rows, int64_t out_begin, float* scratch) {
  constexpr int64_t kBlock = 128;
  constexpr float kCodeUnit = 256.f;  // kernels.h: codes count as 2^-8 of what they are
  const bool convert = rows.rows > kFewRows;
  const int64_t step = convert ? tile_rows(w.cols) : kBlock;
  const float* x[kScaledRows];
  float* const codes = scratch + kScaledRows * w.cols;
  MatmulTile tile;
  tile.cols = w.cols;
  tile.x = x;
  for (int64_t i = begin; i < end; i += tile.n) {
    tile.n = std::min({end, (i / kBlock + 1) * kBlock, i + step}) - i;
    tile.w = w.data + i * w.cols;
    tile.w_stride = w.cols;
    if (convert) {
      kernels.dequantize[int(w.format)](tile.w, codes, tile.n * w.cols);
      kernels.scale(codes, tile.n * w.cols, 1 / kCodeUnit, codes);
      tile.w = reinterpret_cast<const std::byte*>(codes);
      tile.w_stride = w.cols * int64_t(sizeof(float));
    }
    tile.bias = bias ? bias + i : nullptr;
    tile.out_begin = out_begin + (i - begin);
    const float* scales = w.scales ? w.scales + i / kBlock * ((w.cols + kBlock - 1) / kBlock) : nullptr;
    for (int64_t r = 0; r < rows.rows; r += kScaledRows) {
      tile.rows = std::min(kScaledRows, rows.rows - r);
      tile.out = rows.out + r;
      for (int64_t j = 0; j < tile.rows; ++j) {
        float* scaled = scratch + j * w.cols;
        x[j] = scaled;
        for (int64_t c = 0; c < w.cols; c += kBlock) {
          const float factor = kCodeUnit * (scales ? scales[c / kBlock] : 1.f);
          kernels.scale(rows.x[r + j] + c, std::min(kBlock, w.cols - c), factor, scaled + c);
        }
      }
      (convert ? kernels.matmul[kScalarF32] : kernels.f8_weights)(tile);
    }
  }
}

}  // namespace

const TileFormat* tile_format(const Kernels& kernels, const MatrixView& w) {
  return w.layout == MatrixLayout::kTiles16 ? &kernels.tiles[int(w.format)] : nullptr;
}

int64_t quantized_rows_limit(int64_t cols) {
  return std::max<int64_t>(1, kQuantizedElements / std::max<int64_t>(1, cols));
}

uint64_t quantized_scratch_bytes() {
  // A byte, and a scale for 32, a sum and a start for 16; three of them (cpu_ops.h).
  return uint64_t(kQuantizedElements) * 3 * (8 + 1 + 2 * 2) / 8;
}

void QuantizedRows::reserve(int64_t n, int64_t cols, const TileFormat& format) {
  EF_DCHECK(cols % 32 == 0);
  format_ = format;
  const auto grow = [](auto& v, int64_t size) {
    if (int64_t(v.size()) < size) v.resize(size_t(size));
    return v.data();
  };
  // Rows begin at cache lines of their own: threads write them side by side.
  const int64_t stride = round_up(cols, 64), groups = cols / format.group;
  int8_t* codes = grow(codes_, n * stride);
  float* scales = grow(scales_, n * (cols / 32));
  float* sums = grow(sums_, n * groups);
  int32_t* starts = grow(starts_, n * groups);
  rows_.resize(size_t(n));
  for (int64_t i = 0; i < n; ++i)
    rows_[size_t(i)] = {codes + i * stride, scales + i * (cols / 32), sums + i * groups, starts + i * groups};
}

void QuantizedRows::quantize(const Kernels& kernels, int64_t i, int64_t begin, int64_t end, const float* x) {
  EF_DCHECK(begin % 32 == 0 && end % 32 == 0);
  const QuantizedRow& row = rows_[size_t(i)];
  // The views are constant for kernels; the memory is this object's own.
  const auto own = [](auto* p) { return const_cast<std::remove_const_t<std::remove_pointer_t<decltype(p)>>*>(p); };
  const int64_t group = begin / format_.group;
  kernels.quantize_row({x, end - begin, format_.group, format_.zero, own(row.codes) + begin,
                        own(row.scale) + begin / 32, own(row.scaled_sum) + group, own(row.start) + group});
}

void matmul_rows(const Kernels& kernels, const MatrixView& w, int64_t begin, int64_t end, const float* bias,
                 const RowPointers& rows, int64_t out_begin, float* scratch) {
  EF_DCHECK(begin >= 0 && end <= w.rows);
  if (const TileFormat* format = tile_format(kernels, w)) {
    const int64_t whole = std::min(end, w.rows / kTileRows * kTileRows);
    if (begin < whole) matmul_tiles(*format, w, begin, whole, bias, rows, out_begin);
    if (whole >= end) return;
    // The rows that fill no tile lie behind as they are.
    MatrixView rest = w;
    rest.layout = MatrixLayout::kRows;
    return matmul_rows(kernels, rest, whole, end, bias, rows, out_begin + (whole - begin), scratch);
  }
  if (w.format == Format::kF8E4M3 && kernels.f8_weights)
    return matmul_f8(kernels, w, begin, end, bias, rows, out_begin, scratch);
  const int scalar = direct_scalar(w.format);
  const int64_t step = tile_rows(w.cols);
  MatmulTile tile;
  tile.cols = w.cols;
  tile.x = rows.x;
  tile.rows = rows.rows;
  tile.out = rows.out;
  for (int64_t i = begin; i < end; i += step) {
    tile.n = std::min(step, end - i);
    tile.bias = bias ? bias + i : nullptr;
    tile.out_begin = out_begin + (i - begin);
    if (scalar >= 0) {
      tile.w_stride = int64_t(row_bytes(w.format, w.cols));
      tile.w = w.data + i * tile.w_stride;
    } else {
      for (int64_t j = 0; j < tile.n; ++j) dequantize(kernels, w, i + j, scratch + j * w.cols);
      tile.w_stride = w.cols * int64_t(sizeof(float));
      tile.w = reinterpret_cast<const std::byte*>(scratch);
    }
    if (scalar == kScalarBF16 && kernels.bf16_weights)
      kernels.bf16_weights(tile);
    else
      kernels.matmul[std::max(scalar, 0)](tile);
  }
}

int64_t matmul_grain(const MatrixView& w, int64_t n, int64_t rows, int threads) {
  const int64_t work_per_row = std::max<int64_t>(1, w.cols * std::max<int64_t>(1, rows));
  // Two tiles: a group of 32 elements of the next product's activations.
  const bool tiles = w.layout == MatrixLayout::kTiles16;
  const int64_t unit = tiles ? 2 * kTileRows : kMinTileRows;
  const int64_t work = tiles ? 4 * kTaskWork : kTaskWork;
  const int64_t least = round_up(std::max<int64_t>(1, work / work_per_row), unit);
  const int64_t share = round_up(std::max<int64_t>(1, n / (4 * std::max(1, threads))), unit);
  // With few rows memory decides, and long runs of it are read fastest; with many, weights stay in a cache between
  // them.
  const int64_t most = rows <= kFewRows ? n : std::max(least, 8 * tile_rows(w.cols));
  return std::clamp(share, std::min(least, most), most);
}

namespace {

// One pass of linear() over rows that may be quantised at once.
void linear_rows(const Context& c, const LinearArgs& a, RowPointers rows) {
  const int64_t grain = matmul_grain(a.w, a.w.rows, rows.rows, c.pool.size());
  if (const TileFormat* format = tile_format(c.kernels, a.w)) {
    QuantizedRows& quantized = c.scratch.quantized(0);
    quantized.reserve(rows.rows, a.w.cols, *format);
    c.pool.parallel_for(rows.rows, std::max<int64_t>(1, kTaskWork / a.w.cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) quantized.quantize(c.kernels, r, 0, a.w.cols, rows.x[r]);
    });
    rows.quantized = quantized.rows();
  }
  c.pool.parallel_for(a.w.rows, grain, [&](int64_t begin, int64_t end, int worker) {
    matmul_rows(c.kernels, a.w, begin, end, a.bias, rows, begin, c.scratch.floats(worker, matmul_scratch(a.w)));
  });
}

}  // namespace

void linear(const Context& c, const LinearArgs& a) {
  if (a.rows <= 0) return;
  std::vector<const float*> x(static_cast<size_t>(a.rows));
  std::vector<float*> out(static_cast<size_t>(a.rows));
  for (int64_t r = 0; r < a.rows; ++r) x[size_t(r)] = a.x + r * a.w.cols, out[size_t(r)] = a.out + r * a.w.rows;
  const int64_t step = a.w.layout == MatrixLayout::kTiles16 ? quantized_rows_limit(a.w.cols) : a.rows;
  for (int64_t r = 0; r < a.rows; r += step)
    linear_rows(c, a, {x.data() + r, out.data() + r, std::min(step, a.rows - r)});
}

void head_linear(const Context& c, const HeadLinearArgs& a) {
  if (a.rows <= 0 || a.heads <= 0) return;
  EF_DCHECK(a.w.rows % a.heads == 0 && a.w.layout == MatrixLayout::kRows);
  const int64_t n = a.w.rows / a.heads;
  const size_t count = size_t(a.rows) * size_t(a.heads);
  std::vector<const float*> x(count);
  std::vector<float*> out(count);
  for (int64_t h = 0; h < a.heads; ++h) {
    for (int64_t r = 0; r < a.rows; ++r) {
      x[size_t(h * a.rows + r)] = a.x + r * a.x_row_stride + h * a.x_head_stride;
      out[size_t(h * a.rows + r)] = a.out + r * a.out_row_stride + h * a.out_head_stride;
    }
  }
  const int64_t grain = std::min(n, matmul_grain(a.w, a.w.rows, a.rows, c.pool.size()));
  if (grain <= 0) return;
  const int64_t tasks_per_head = (n + grain - 1) / grain;
  c.pool.parallel_for(tasks_per_head * a.heads, 1, [&](int64_t begin, int64_t end, int worker) {
    float* scratch = c.scratch.floats(worker, matmul_scratch(a.w));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t h = task / tasks_per_head;
      const int64_t first = task % tasks_per_head * grain;
      const RowPointers rows{&x[size_t(h * a.rows)], &out[size_t(h * a.rows)], a.rows};
      matmul_rows(c.kernels, a.w, h * n + first, h * n + std::min(n, first + grain), nullptr, rows, first, scratch);
    }
  });
}

}  // namespace ef::cpu
