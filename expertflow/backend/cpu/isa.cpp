#ifdef EF_CPU_X86
#include <cpuid.h>
#endif

#include <string>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "expertflow/base/errors.h"

namespace ef {

namespace {
struct IsaRow {
  Isa isa;
  std::string_view name;
  bool (*supported)();
  bool by_itself;  // "auto" may choose it
};
// __builtin_cpu_supports asks the processor and the operating system (saved registers).
#ifdef EF_CPU_X86
bool avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
// Leaf 7.1, EAX bit 4; GCC 12 has no name for it.
bool avx2_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
bool avx512() {
  return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool avx512_vnni() { return avx512() && __builtin_cpu_supports("avx512vnni"); }
bool avx512_bf16() { return avx512_vnni() && __builtin_cpu_supports("avx512bf16"); }
#endif
constexpr IsaRow kIsas[] = {
    {Isa::kReference, "reference", [] { return true; }, true},
#ifdef EF_CPU_X86
    {Isa::kAvx2, "avx2", avx2, true},
    {Isa::kAvx2Vnni, "avx2-vnni", avx2_vnni, true},
    {Isa::kAvx512, "avx512", avx512, true},
    {Isa::kAvx512Vnni, "avx512-vnni", avx512_vnni, true},
    {Isa::kAvx512Bf16, "avx512-bf16", avx512_bf16, false},
#endif
};
}  // namespace

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const IsaRow& row : kIsas)
    if (row.supported()) isas.push_back(row.isa);
  return isas;
}

Isa default_isa() {
  Isa best = Isa::kReference;
  for (const IsaRow& row : kIsas)
    if (row.by_itself && row.supported()) best = row.isa;
  return best;
}

std::string_view isa_name(Isa isa) {
  for (const IsaRow& row : kIsas)
    if (row.isa == isa) return row.name;
  return "not in this build";
}

Isa parse_isa(std::string_view name) {
  if (name == "auto") return default_isa();
  std::string known = "auto";
  for (const IsaRow& row : kIsas) {
    known += ", ";
    known += row.name;
    if (name != row.name) continue;
    EF_CHECK(row.supported(), ConfigError, "instruction set {}: this processor lacks it (its best is {})", name,
             isa_name(default_isa()));
    return row.isa;
  }
  fail<ConfigError>("unknown instruction set \"{}\": expected one of {}", name, known);
}

}  // namespace ef
