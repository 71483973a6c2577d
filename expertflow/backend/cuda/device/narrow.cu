#include "narrow_row.cuh"

namespace ef::cuda {
namespace {

template <Narrow kKind, class Source>
__global__ void __launch_bounds__(kMostNarrowThreads)
    narrow_kernel(const Source source, const int64_t cols, const int32_t* live, const NarrowRows to) {
  let_later_start();
  narrow_row<kKind>(source, blockIdx.x, cols, live, to);
}

template <class Source>
cudaError_t start(Narrow kind, const Source& source, int64_t rows, int64_t cols, const int32_t* live,
                  const NarrowRows& to, cudaStream_t stream) {
  if (rows <= 0) return cudaSuccess;
  Shape shape;
  shape.grid = unsigned(rows);
  // A norm waits for its sums: the fewer chunks a thread has, the sooner they are there.
  const int64_t threads = Source::kNorm ? to.chunks : (to.chunks + kHeldChunks - 1) / kHeldChunks;
  shape.block = unsigned(min(int64_t(kMostNarrowThreads), (threads + 31) / 32 * 32));
  shape.start = Start::kEarly;
  return launch(kind == Narrow::kBrain ? narrow_kernel<Narrow::kBrain, Source> : narrow_kernel<Narrow::kHalf, Source>,
                shape, stream, source, cols, live, to);
}

}  // namespace

int64_t narrow_chunks(int64_t cols) { return (cols + kStepColumns - 1) / kStepColumns * kStepChunks; }

cudaError_t narrow(Narrow kind, const float* x, int64_t stride, int64_t rows, int64_t cols, const NarrowRows& to,
                   cudaStream_t stream, const int32_t* live) {
  return start(kind, plain_source(x, stride), rows, cols, live, to, stream);
}

bool narrow_norms(int64_t cols) { return narrow_chunks(cols) <= kHeldChunks * kMostNarrowThreads; }

cudaError_t narrow_norm(Narrow kind, const NormParams& p, const NarrowRows& to, cudaStream_t stream) {
  if (!narrow_norms(p.width)) return cudaErrorInvalidValue;
  NormSource source;
  static_cast<PlainSource&>(source) = plain_source(p.x, p.width);
  source.norm = p;
  return start(kind, source, p.rows, p.width, nullptr, to, stream);
}

cudaError_t narrow_sums(Narrow kind, const RankSums& sums, const NormParams& p, const NarrowRows& to,
                        cudaStream_t stream) {
  if (!narrow_norms(p.width) || p.width % 8 != 0 || !to.natural) return cudaErrorInvalidValue;
  SumSource source;
  static_cast<PlainSource&>(source) = plain_source(p.x, p.width);
  source.norm = p;
  source.ids = sums.p.ids, source.weights = sums.p.weights, source.down = sums.down;
  source.add_to = sums.p.add_to, source.add_scale = sums.p.add_scale;
  source.experts = sums.p.experts, source.top_k = sums.p.top_k;
  return start(kind, source, p.rows, p.width, nullptr, to, stream);
}

cudaError_t narrow_gated(Narrow kind, const ActivationParams& p, const int32_t* live, const NarrowRows& to,
                         cudaStream_t stream) {
  const GatedSource source{plain_source(p.gate, p.in_stride), plain_source(p.up, p.in_stride), p.kind, p.alpha,
                           p.limit};
  return start(kind, source, p.rows, p.width, live, to, stream);
}

}  // namespace ef::cuda
