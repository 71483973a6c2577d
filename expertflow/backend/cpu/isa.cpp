#include <string>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/base/errors.h"

namespace ef {

namespace {
struct IsaRow {
  Isa isa;
  std::string_view name;
  bool (*supported)();
};
// __builtin_cpu_supports asks the processor and the operating system (saved registers).
constexpr IsaRow kIsas[] = {
    {Isa::kReference, "reference", [] { return true; }},
#ifdef EF_CPU_X86
    {Isa::kAvx2, "avx2",
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }},
    {Isa::kAvx512, "avx512",
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
     }},
#endif
};
}  // namespace

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const IsaRow& row : kIsas)
    if (row.supported()) isas.push_back(row.isa);
  return isas;
}

std::string_view isa_name(Isa isa) {
  for (const IsaRow& row : kIsas)
    if (row.isa == isa) return row.name;
  return "not in this build";
}

Isa parse_isa(std::string_view name) {
  if (name == "auto") return supported_isas().back();
  std::string known = "auto";
  for (const IsaRow& row : kIsas) {
    known += ", ";
    known += row.name;
    if (name != row.name) continue;
    EF_CHECK(row.supported(), ConfigError, "instruction set {}: this processor lacks it (its best is {})", name,
             isa_name(supported_isas().back()));
    return row.isa;
  }
  fail<ConfigError>("unknown instruction set \"{}\": expected one of {}", name, known);
}

}  // namespace ef
