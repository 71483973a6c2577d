// What a build without CUDA says when it is asked for a device.
#include "expertflow/backend/cuda_backend.h"
#include "expertflow/base/errors.h"

namespace ef {
namespace {

[[noreturn]] void refuse() {
  fail<ConfigError>(
      "device: this program was built without CUDA; build it with the CUDA toolkit installed (cmake --preset cuda), or "
      "use --device cpu");
}

}  // namespace

bool built_with_cuda() { return false; }
int cuda_device_count() { return 0; }
CudaMemory cuda_memory(int) { refuse(); }
std::unique_ptr<Backend> make_cuda_backend(int, const CudaOptions&) { refuse(); }
CudaPeaks cuda_peaks(int, uint64_t) { refuse(); }
uint64_t cuda_scratch_bytes(const StepShape&, const CudaOptions&) { return 0; }
uint64_t cuda_stream_bytes() { return 0; }
uint64_t cuda_table_bytes(int) { return 0; }

}  // namespace ef
