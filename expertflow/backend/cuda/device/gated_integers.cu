#include "matvec_kernel.cuh"

namespace ef::cuda {

cudaError_t gated_integers(const MatvecJob& job, const Shape& shape, cudaStream_t stream) {
  return launch_for_rows([](auto rows) { return gated_kernel<MeetQ8, decltype(rows)::value>; }, shape, stream, job);
}

}  // namespace ef::cuda
