// AVX2 with AVX-VNNI: processors with its 256-bit instructions and without AVX-512.
#ifdef EF_CPU_X86
#include "expertflow/backend/cpu/lanes_avx2.h"

namespace ef::cpu {
namespace {
inline I dot(I sum, I codes, I x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
}  // namespace
}  // namespace ef::cpu

#include "expertflow/backend/cpu/sums_dot.h"
//
#include "expertflow/backend/cpu/kernels_simd.h"

namespace ef::cpu {
const Kernels& avx2_vnni_kernels() { return kKernels; }
}  // namespace ef::cpu
#endif
