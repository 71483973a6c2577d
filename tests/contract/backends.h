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

struct BackendMaker {
  std::string name;  // letters, digits and _ only
  std::function<std::unique_ptr<Backend>(ThreadPool&)> make;
};

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

}  // namespace ef::testing
