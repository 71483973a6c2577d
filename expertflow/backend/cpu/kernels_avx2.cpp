// AVX2, FMA and F16C.
#ifdef EF_CPU_X86
#include "expertflow/backend/cpu/lanes_avx2.h"
//
#include "expertflow/backend/cpu/sums_pairs.h"
//
#include "expertflow/backend/cpu/kernels_simd.h"

namespace ef::cpu {
const Kernels& avx2_kernels() { return kKernels; }
}  // namespace ef::cpu
#endif
