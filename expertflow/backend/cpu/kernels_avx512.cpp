// AVX-512 F, BW, DQ, VL.
#ifdef EF_CPU_X86
#include "expertflow/backend/cpu/lanes_avx512.h"
//
#include "expertflow/backend/cpu/sums_pairs.h"
//
#include "expertflow/backend/cpu/kernels_simd.h"

namespace ef::cpu {
const Kernels& avx512_kernels() { return kKernels; }
}  // namespace ef::cpu
#endif
