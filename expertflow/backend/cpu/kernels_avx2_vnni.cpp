// AVX2 with AVX-VNNI: processors with its 256-bit instructions and without AVX-512.
#ifdef EF_CPU_X86
#include "expertflow/backend/cpu/lanes_avx2.h"

namespace ef::cpu {
namespace {

// Four products of unsigned codes and signed activations a lane in one instruction.
template <class T>
struct Sums {
  static I prepare(I codes) { return T::kSigned ? _mm256_xor_si256(codes, _mm256_set1_epi8(char(-128))) : codes; }
  void begin(const int32_t* start) { sum = _mm256_set1_epi32(*start); }
  void add(I codes, I x) { sum = _mm256_dpbusd_avx_epi32(sum, codes, x); }
  I total() const { return sum; }
  I sum;
};

}  // namespace
}  // namespace ef::cpu

#include "expertflow/backend/cpu/kernels_simd.h"

namespace ef::cpu {
const Kernels& avx2_vnni_kernels() { return kKernels; }
}  // namespace ef::cpu
#endif
