#include "matmul.cuh"

namespace ef::cuda {

cudaError_t matmul_scalar(const MatmulParams& p, cudaStream_t stream) {
  switch (p.format) {
    case Fmt::kF32:
      return launch_matmul<F32>(p, stream);
    case Fmt::kF16:
      return launch_matmul<F16>(p, stream);
    case Fmt::kBF16:
      return launch_matmul<BF16>(p, stream);
    default:
      return launch_matmul<F8>(p, stream);
  }
}

cudaError_t matmul(const MatmulParams& p, cudaStream_t stream) {
  if (p.format <= Fmt::kF8E4M3) return matmul_scalar(p, stream);
  if (p.format >= Fmt::kQ2K && p.format <= Fmt::kQ6K || p.format == Fmt::kIQ4XS) return matmul_block256(p, stream);
  return matmul_block32(p, stream);
}

}  // namespace ef::cuda
