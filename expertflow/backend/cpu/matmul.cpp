// Products with weight matrices: linear, head_linear and the experts. Weights are met a tile of rows at a time,
// dequantised once for all rows of x; the order of summation within an element is the kernel's and depends on cols
// alone.
#include <algorithm>
#include <cmath>

#include "expertflow/backend/cpu/cpu_ops.h"
#include "expertflow/base/errors.h"

namespace ef::cpu {
namespace {

// A tile of float32 weights stays in a core's second level cache while rows of x pass by.
constexpr int64_t kTileBytes = 256 << 10;
constexpr int64_t kMinTileRows = 4, kMaxTileRows = 32;
// Less work than this (multiply-adds) is not worth handing to another thread.
constexpr int64_t kTaskWork = 64 << 10;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

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

// kF8E4M3: factors of 128 x 128 blocks, as dequantize_row applies them.
void apply_scales(const MatrixView& w, int64_t row, float* out) {
  constexpr int64_t kBlock = 128;
  const float* scales = w.scales + row / kBlock * ((w.cols + kBlock - 1) / kBlock);
  for (int64_t c = 0; c < w.cols; c += kBlock, ++scales)
    for (int64_t i = c; i < std::min(w.cols, c + kBlock); ++i) out[i] *= *scales;
}

void dequantize(const Kernels& kernels, const MatrixView& w, int64_t row, float* out) {
  const DequantizeFn fast = kernels.dequantize ? kernels.dequantize[int(w.format)] : nullptr;
  if (!fast) return dequantize_row(w, row, out);
  fast(w.data + uint64_t(row) * row_bytes(w.format, w.cols), out, w.cols);
  if (w.format == Format::kF8E4M3 && w.scales) apply_scales(w, row, out);
}

}  // namespace

int64_t matmul_scratch(const MatrixView& w) { return direct_scalar(w.format) >= 0 ? 0 : tile_rows(w.cols) * w.cols; }

void matmul_rows(const Kernels& kernels, const MatrixView& w, int64_t begin, int64_t end, const float* bias,
                 const RowPointers& rows, int64_t out_begin, float* scratch) {
  EF_DCHECK(begin >= 0 && end <= w.rows);
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
    kernels.matmul[std::max(scalar, 0)](tile);
  }
}

int64_t matmul_grain(const MatrixView& w, int64_t n, int64_t rows, int threads) {
  const int64_t work_per_row = std::max<int64_t>(1, w.cols * std::max<int64_t>(1, rows));
  const int64_t least = round_up(std::max<int64_t>(1, kTaskWork / work_per_row), kMinTileRows);
  const int64_t share = round_up(std::max<int64_t>(1, n / (4 * std::max(1, threads))), kMinTileRows);
  return std::clamp(share, least, std::max(least, 8 * tile_rows(w.cols)));
}

void linear(const Context& c, const LinearArgs& a) {
  if (a.rows <= 0) return;
  std::vector<const float*> x(static_cast<size_t>(a.rows));
  std::vector<float*> out(static_cast<size_t>(a.rows));
  for (int64_t r = 0; r < a.rows; ++r) x[size_t(r)] = a.x + r * a.w.cols, out[size_t(r)] = a.out + r * a.w.rows;
  const RowPointers rows{x.data(), out.data(), a.rows};
  const int64_t grain = matmul_grain(a.w, a.w.rows, a.rows, c.pool.size());
  c.pool.parallel_for(a.w.rows, grain, [&](int64_t begin, int64_t end, int worker) {
    matmul_rows(c.kernels, a.w, begin, end, a.bias, rows, begin, c.scratch.floats(worker, matmul_scratch(a.w)));
  });
}

void head_linear(const Context& c, const HeadLinearArgs& a) {
  if (a.rows <= 0 || a.heads <= 0) return;
  EF_DCHECK(a.w.rows % a.heads == 0);
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
