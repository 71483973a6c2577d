// The list that the op suite runs for: adding a backend or an instruction set is one line.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/backend/cuda_backend.h"

namespace ef::testing {

/// How far a backend's compositions may be from its single ops.
enum class Arithmetic : uint8_t { kExact, kRounds16, kRounds8 };

struct BackendMaker {
  std::string name;  // letters, digits and _ only
  std::function<std::unique_ptr<Backend>(ThreadPool&)> make;
  Arithmetic arithmetic = Arithmetic::kExact;
  std::function<std::unique_ptr<Backend>(ThreadPool&)> oracle = make;  ///< the same machine's exact single ops
};

/// Backends whose single ops are exact, and whose rows do not depend on their company.
inline std::vector<BackendMaker> backend_makers() {
  std::vector<BackendMaker> makers;
  for (Isa isa : supported_isas()) {
    std::string name = "cpu_" + std::string(isa_name(isa));
    std::replace(name.begin(), name.end(), '-', '_');
    makers.push_back({name, [isa](ThreadPool& p) { return make_cpu_backend(p, isa); }});
  }
  if (cuda_device_count() > 0) makers.push_back({"cuda", [](ThreadPool&) { return make_cuda_backend(0); }});
  return makers;
}

/// These, and those which choose kernels by shape.
inline std::vector<BackendMaker> composition_makers() {
  std::vector<BackendMaker> makers = backend_makers();
  if (cuda_device_count() == 0) return makers;
  const auto exact = [](ThreadPool&) { return make_cuda_backend(0); };
  const auto fast = [](bool round) {
    return
        [round](ThreadPool&) { return make_cuda_backend(0, {.batch_invariant = false, .round_activations = round}); };
  };
  makers.push_back({"cuda_fast", fast(false), Arithmetic::kRounds16, exact});
  makers.push_back({"cuda_fast_q8", fast(true), Arithmetic::kRounds8, exact});
  return makers;
}

}  // namespace ef::testing
