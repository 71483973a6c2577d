// Which device a model runs on, and what that device has.
#pragma once
#include <memory>
#include <string>

#include "expertflow/backend/backend.h"
#include "expertflow/backend/cuda_backend.h"
#include "expertflow/base/thread_pool.h"
#include "expertflow/engine/engine_options.h"
#include "expertflow/engine/memory_budget.h"

namespace ef {

struct DeviceChoice {
  bool cuda = false;
  int index = 0;  ///< of the CUDA device
};
/// "cpu", "cuda" (the first), "cuda:N", or "auto", which is the CPU so far. ConfigError otherwise.
DeviceChoice parse_device(const std::string& text);

CudaOptions cuda_options(const EngineOptions& options);

/// pool must outlive the result. ConfigError if this build or machine has no such device.
std::unique_ptr<Backend> make_backend(const DeviceChoice& device, ThreadPool& pool, const EngineOptions& options);

/// Memory that budgets are resolved against: the machine's, or what is free on the device; less, where options cap it.
/// A device's is never planned to the last byte unless they say so.
MemoryInfo device_memory_info(const DeviceChoice& device, const EngineOptions& options);

}  // namespace ef
