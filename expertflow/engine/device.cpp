#include "expertflow/engine/device.h"

#include <charconv>

#include "expertflow/backend/cpu/cpu_backend.h"
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

CudaOptions cuda_options(const EngineOptions& options) {
  return {options.batch_invariant, parse_activations(options.activations) == Activations::kQ8};
}

std::unique_ptr<Backend> make_backend(const DeviceChoice& device, ThreadPool& pool, const EngineOptions& options) {
  if (device.cuda) return make_cuda_backend(device.index, cuda_options(options));
  return make_cpu_backend(pool, parse_isa(options.isa), parse_activations(options.activations));
}

namespace {

std::optional<MemoryInfo::Cap> cap_of(const std::string& text, const MemoryInfo& info, bool device) {
  BudgetRequest asked;
  try {
    asked = parse_budget(text);
  } catch (const ConfigError&) {
    asked.kind = BudgetRequest::Kind::kSlots;  // refused below, in this flag's own words
  }
  const std::string why = "--device-memory " + text;
  switch (asked.kind) {
    case BudgetRequest::Kind::kBytes:
      return MemoryInfo::Cap{asked.bytes, why};
    case BudgetRequest::Kind::kShare:
      if (const auto left = info.left()) return MemoryInfo::Cap{uint64_t(double(*left) * asked.share), why};
      return std::nullopt;
    case BudgetRequest::Kind::kAuto:
      if (!device) return std::nullopt;
      return MemoryInfo::Cap{*info.left() - std::min(*info.left(), memory_margin(*info.left())), "the rest stays free"};
    default:
      fail<ConfigError>(
          "device-memory: expected bytes (24GiB), a share of what is free (above 0 %, at most 100 %) or auto, found "
          "\"{}\"",
          text);
  }
}

}  // namespace

MemoryInfo device_memory_info(const DeviceChoice& device, const EngineOptions& options) {
  MemoryInfo info;
  if (device.cuda) {
    const CudaMemory memory = cuda_memory(device.index);
    info.available = memory.free, info.total = memory.total;
  } else {
    info = read_memory_info();
  }
  info.cap = cap_of(options.device_memory, info, device.cuda);
  return info;
}

}  // namespace ef
