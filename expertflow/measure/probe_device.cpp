#include "expertflow/backend/cuda_backend.h"
#include "expertflow/measure/probe.h"

namespace ef {

DevicePeaks measure_device(int device) {
  const CudaPeaks found = cuda_peaks(device);
  return {{found.read, found.read_buffer, true}, {found.half, found.half, found.half}};
}

}  // namespace ef
