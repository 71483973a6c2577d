// AVX-512 with VNNI.
#ifdef EF_CPU_X86
#include "expertflow/backend/cpu/sums_vnni.h"
//
#include "expertflow/backend/cpu/kernels_simd.h"

namespace ef::cpu {
const Kernels& avx512_vnni_kernels() { return kKernels; }
}  // namespace ef::cpu
#endif
