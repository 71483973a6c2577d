#include "launch.cuh"

namespace ef::cuda {

bool starts_early() {
  // One answer a process: where devices differ, the oldest decides.
  static const bool early = [] {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return false;
    for (int i = 0; i < count; ++i) {
      int major = 0;
      if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) != cudaSuccess || major < 9)
        return false;
    }
    return true;
  }();
  return early;
}

}  // namespace ef::cuda
