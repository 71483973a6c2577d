#include "matmul.cuh"

namespace ef::cuda {

cudaError_t matmul_block256(const MatmulParams& p, cudaStream_t stream) {
  switch (p.format) {
    case Fmt::kQ2K:
      return launch_matmul<Q2K>(p, stream);
    case Fmt::kQ3K:
      return launch_matmul<Q3K>(p, stream);
    case Fmt::kQ4K:
      return launch_matmul<Q4K>(p, stream);
    case Fmt::kQ5K:
      return launch_matmul<Q5K>(p, stream);
    case Fmt::kQ6K:
      return launch_matmul<Q6K>(p, stream);
    case Fmt::kIQ4XS:
      return launch_matmul<IQ4XS>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ef::cuda
