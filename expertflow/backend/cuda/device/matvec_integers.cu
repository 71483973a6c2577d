#include "matvec_kernel.cuh"

namespace ef::cuda {

cudaError_t matvec_integers(const MatvecJob& job, const Shape& shape, cudaStream_t stream) {
  const auto kernel_of = [](auto rows) { return matvec_kernel<MeetQ8, decltype(rows)::value>; };
  return launch_for_rows(kernel_of, job.rows, shape, stream, job);
}

}  // namespace ef::cuda
