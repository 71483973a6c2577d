#include "expertflow/engine/device.h"

#include <charconv>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/backend/cuda_backend.h"
#include "expertflow/base/errors.h"

namespace ef {

DeviceChoice parse_device(const std::string& text) {
  if (text == "auto" || text == "cpu") return {};
  if (text == "cuda") return {true, 0};
  const std::string prefix = "cuda:";
  if (text.compare(0, prefix.size(), prefix) == 0) {
    DeviceChoice out{true, 0};
    const char *begin = text.data() + prefix.size(), *end = text.data() + text.size();
    const auto [at, error] = std::from_chars(begin, end, out.index);
    if (error == std::errc() && at == end && out.index >= 0) return out;
  }
  fail<ConfigError>("device: expected auto, cpu, cuda or cuda:N, found \"{}\"", text);
}

std::unique_ptr<Backend> make_backend(const DeviceChoice& device, ThreadPool& pool, const EngineOptions& options) {
  const Activations activations = parse_activations(options.activations);
  if (device.cuda) return make_cuda_backend(device.index, {options.batch_invariant, activations == Activations::kQ8});
  return make_cpu_backend(pool, parse_isa(options.isa), activations);
}

MemoryInfo device_memory_info(const DeviceChoice& device) {
  if (!device.cuda) return read_memory_info();
  MemoryInfo info;
  info.available = cuda_memory(device.index).free;
  return info;
}

}  // namespace ef
