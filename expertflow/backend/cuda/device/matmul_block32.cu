#include "matmul.cuh"

namespace ef::cuda {

cudaError_t matmul_block32(const MatmulParams& p, cudaStream_t stream) {
  switch (p.format) {
    case Fmt::kQ8_0:
      return launch_matmul<Q8_0>(p, stream);
    case Fmt::kQ4_0:
      return launch_matmul<Q4_0>(p, stream);
    case Fmt::kQ4_1:
      return launch_matmul<Q4_1>(p, stream);
    case Fmt::kQ5_0:
      return launch_matmul<Q5_0>(p, stream);
    case Fmt::kQ5_1:
      return launch_matmul<Q5_1>(p, stream);
    case Fmt::kIQ4NL:
      return launch_matmul<IQ4NL>(p, stream);
    case Fmt::kMXFP4:
      return launch_matmul<MXFP4>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace ef::cuda
