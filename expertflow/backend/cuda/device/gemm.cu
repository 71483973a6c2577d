// The launchers of products of many rows.
#include "gemm_task.cuh"
#include "launch.cuh"

namespace ef::cuda {

cudaError_t gemm_as(Fmt format, const GemmTask& task, cudaStream_t stream) {
  switch (format) {
    case Fmt::kF32:
    case Fmt::kF16:
    case Fmt::kBF16:
    case Fmt::kF8E4M3:
      return gemm_scalar(format, task, stream);
    case Fmt::kQ2K:
    case Fmt::kQ3K:
    case Fmt::kQ4K:
    case Fmt::kQ5K:
    case Fmt::kQ6K:
    case Fmt::kIQ4XS:
      return gemm_block256(format, task, stream);
    default:
      return gemm_block32(format, task, stream);
  }
}

bool few_pairs(Fmt format, int tile_rows) {
  return tile_rows <= few_tile_rows(1) && (format == Fmt::kQ4K || format == Fmt::kQ5K);
}

void place_parts(GemmTask& task, int outputs) {
  int first = 0;
  for (int i = 0; i < task.count; ++i) {
    task.part[i].first_block = first;
    first += int((task.part[i].n + outputs - 1) / outputs);
  }
}

void set_input(GemmTask& task, const NarrowRows& x, int64_t cols) {
  task.x = x.data, task.factor = x.factor, task.chunks = x.chunks, task.cols = cols;
  task.steps = int(x.chunks / kStepChunks);
}

NarrowRows carve_narrow(Carve& carve, int64_t rows, int64_t cols, bool natural) {
  NarrowRows out;
  out.natural = natural;
  out.chunks = narrow_chunks(cols);
  out.data = carve.take<uint4>(rows * out.chunks);
  out.factor = carve.take<float>(rows);
  return out;
}

namespace {

// The most rows a tile can have with enough tiles for the device's multiprocessors; the fewer, the more often the
// weights are unpacked.
int tile_rows_for(int64_t rows, int64_t blocks) {
  const int processors = device_traits().multiprocessors;
  for (const int tile : {128, 64, 32}) {
    const int64_t all = (rows + tile - 1) / tile * blocks;
    if (rows > tile / 2 && 2 * all >= 3 * int64_t(processors)) return tile;
  }
  return 16;
}

struct Inputs {
  NarrowRows kind[2];  // by Narrow; without data where no matrix takes it
};

Product product_of(const GemmParams& p, int i) {
  if (i > 0) return p.also[i - 1];
  Product first;
  first.format = p.format, first.w = p.w, first.n = p.n, first.out = p.out;
  return first;
}

Inputs carve_inputs(Carve& carve, const GemmParams& p) {
  Inputs in;
  for (int i = 0; i <= p.more; ++i) {
    NarrowRows& rows = in.kind[int(narrow_of(product_of(p, i).format))];
    if (rows.chunks == 0) rows = carve_narrow(carve, p.rows, p.cols, p.rows <= kMostFewRows);
  }
  return in;
}

}  // namespace

// Places of chunks are 32-bit numbers in the kernel.
bool fits(int64_t rows, int64_t cols) { return rows * narrow_chunks(cols) <= int64_t(UINT32_MAX); }

uint64_t gemm_scratch(const GemmParams& p) {
  Carve carve(nullptr);
  carve_inputs(carve, p);
  return carve.bytes();
}

namespace {

// One launch normalises and narrows where one kind of input is wanted and a block can hold a row.
bool narrows_norm(const GemmParams& p, const Inputs& in) {
  return p.norm && narrow_norms(p.cols) && (in.kind[0].chunks == 0) != (in.kind[1].chunks == 0);
}

}  // namespace

bool gemm_takes_sums(const GemmParams& p) {
  if (!p.norm || !p.sums || p.rows > kMostFewRows) return false;
  Carve carve(nullptr);
  const Inputs in = carve_inputs(carve, p);
  const RoutedParams& routed = p.sums->p;
  return narrows_norm(p, in) && routed.add_to == p.norm->x && routed.rows == p.rows && routed.hidden == p.cols &&
         p.cols % 8 == 0 && reinterpret_cast<uintptr_t>(routed.add_to) % 16 == 0 && carve.bytes() <= p.sums->room;
}

cudaError_t gemm(const GemmParams& p, cudaStream_t stream) {
  if (p.rows <= 0) return cudaSuccess;
  if (p.more < 0 || p.more > 2 || (p.more > 0 && p.add_to) || !fits(p.rows, p.cols)) return cudaErrorInvalidValue;
  if (p.sums && !gemm_takes_sums(p)) return cudaErrorInvalidValue;
  Carve carve(p.scratch);
  const Inputs in = carve_inputs(carve, p);
  const bool norm_too = narrows_norm(p, in);
  if (p.norm && !norm_too)
    if (const cudaError_t error = norm(*p.norm, stream); error != cudaSuccess) return error;
  for (int kind = 0; kind < 2; ++kind) {
    if (in.kind[kind].chunks == 0) continue;
    const cudaError_t error = p.sums     ? narrow_sums(Narrow(kind), *p.sums, *p.norm, in.kind[kind], stream)
                              : norm_too ? narrow_norm(Narrow(kind), *p.norm, in.kind[kind], stream)
                                         : narrow(Narrow(kind), p.x, p.x_stride, p.rows, p.cols, in.kind[kind], stream);
    if (error != cudaSuccess) return error;
  }
  // Matrices of one format share a launch.
  bool done[3] = {};
  for (int i = 0; i <= p.more; ++i) {
    if (done[i]) continue;
    const Fmt format = product_of(p, i).format;
    GemmTask task;
    for (int j = i; j <= p.more; ++j) {
      const Product product = product_of(p, j);
      if (product.format != format) continue;
      done[j] = true;
      GemmPart part;
      part.w = product.w, part.n = product.n, part.out = product.out,
      part.out_stride = j == 0 ? p.out_stride : product.n;
      if (p.add_to) part.out = p.add_to;
      add_part(task, part);
    }
    set_input(task, in.kind[int(narrow_of(format))], p.cols);
    task.rows = p.rows;
    task.few = p.rows <= kMostFewRows;
    task.tile_rows = task.few ? few_tile_rows(p.rows) : tile_rows_for(p.rows, blocks_of(task, kGemmOutputs));
    task.add = p.add_to != nullptr, task.add_scale = p.add_scale;
    const cudaError_t error = gemm_as(format, task, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace ef::cuda
