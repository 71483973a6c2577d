#include "matvec_kernel.cuh"

namespace ef::cuda {

cudaError_t matvec_floats(const MatvecJob& job, const Shape& shape, cudaStream_t stream) {
  return launch_for_rows([](auto rows) { return matvec_kernel<MeetF32, decltype(rows)::value>; }, shape, stream, job);
}

}  // namespace ef::cuda
