// Activations as gemm.cuh multiplies them: 16 bits wide, rows padded with zeros to a multiple of kStepColumns. Within
// 32 columns, 16-byte chunk j holds pair j (columns 8t + 2j and 8t + 2j + 1) of the octets t = 0 to 3: lane t of four
// then finds the columns of its octet, in order, in its places of the fragments. Float16 rows are scaled by a power of
// two so that their largest magnitude is in [2^9, 2^10); bfloat16 rows are not scaled.
#pragma once
#include "fast.h"

namespace ef::cuda {

enum class Narrow : uint8_t { kHalf, kBrain };
/// What meets weights of a format. Before compute capability 8.0 kBrain gives halves too (gemm.cuh multiplies so).
inline Narrow narrow_of(Fmt format) { return format == Fmt::kBF16 ? Narrow::kBrain : Narrow::kHalf; }

struct NarrowRows {
  uint4* data = nullptr;    ///< [rows, chunks]
  float* factor = nullptr;  ///< [rows]: what sums of the row's products are multiplied by
  int64_t chunks = 0;
  bool natural = false;  ///< chunk c holds columns 8c to 8c + 7, for gemm_few.cuh
};
int64_t narrow_chunks(int64_t cols);  ///< 16-byte chunks of a row

/// Row r from x + r * stride; with `live`, those from *live on are left out.
cudaError_t narrow(Narrow, const float* x, int64_t stride, int64_t rows, int64_t cols, const NarrowRows&, cudaStream_t,
                   const int32_t* live = nullptr);
/// norm()'s rows, which go to p.out too where there is one; for widths that narrow_norms() takes.
bool narrow_norms(int64_t cols);
cudaError_t narrow_norm(Narrow, const NormParams& p, const NarrowRows&, cudaStream_t);
/// narrow_norm() of sums over ranks, which are added where they are to be; for widths that are multiples of 8 too, and
/// rows in their natural order.
cudaError_t narrow_sums(Narrow, const RankSums&, const NormParams&, const NarrowRows&, cudaStream_t);
/// act(gate[r], up[r]), as activation() has it: kind, alpha, limit, rows, width, in_stride, gate and up are read.
/// `live` as for narrow().
cudaError_t narrow_gated(Narrow, const ActivationParams&, const int32_t* live, const NarrowRows&, cudaStream_t);

}  // namespace ef::cuda
