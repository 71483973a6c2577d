#include <algorithm>

#include "launch.cuh"

namespace ef::cuda {

const DeviceTraits& device_traits() {
  static const DeviceTraits traits = [] {
    int count = 0;
    DeviceTraits least;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return least;
    for (int i = 0; i < count; ++i) {
      int major = 0, minor = 0, multiprocessors = 0, shared = 0, together = 0;
      if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) != cudaSuccess ||
          cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i) != cudaSuccess ||
          cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, i) != cudaSuccess ||
          cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, i) != cudaSuccess ||
          cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, i) != cudaSuccess)
        return DeviceTraits{};
      const int capability = 10 * major + minor;
      if (i == 0) least = {capability, multiprocessors, shared, true};
      least = {std::min(least.capability, capability), std::min(least.multiprocessors, multiprocessors),
               std::min(least.shared_bytes, shared), least.blocks_meet && together != 0};
    }
    return least;
  }();
  return traits;
}

bool starts_early() { return device_traits().capability >= 90; }

LaunchWatch*& launch_watch() {
  thread_local LaunchWatch* watch = nullptr;
  return watch;
}

}  // namespace ef::cuda
