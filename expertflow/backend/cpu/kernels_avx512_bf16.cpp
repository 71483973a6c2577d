// AVX-512 with VNNI and BF16: products with BF16 weights take the activations rounded to BF16, as the format's own
// arithmetic does elsewhere.
#ifdef EF_CPU_X86
#include "expertflow/backend/cpu/sums_vnni.h"
//
#include "expertflow/backend/cpu/kernels_simd.h"

namespace ef::cpu {
namespace {

inline __m512bh bits(__m512i v) { return (__m512bh)v; }

// Thirty-two numbers from k on as BF16, pairs in the order of the weights.
inline __m512bh rounded(const float* x) { return _mm512_cvtne2ps_pbh(load(x + 16), load(x)); }
inline __m512bh rounded_part(const float* x, int n) {
  const V low = load_part(x, part_of(n < 16 ? n : 16));
  const V high = n > 16 ? load_part(x + 16, part_of(n - 16)) : zero();
  return _mm512_cvtne2ps_pbh(high, low);
}

template <int M, int N>
void bf16_block(const MatmulTile& a, int64_t i, int64_t r) {
  V sum[M][N];
  const std::byte* w[M];
  const float* x[N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) w[m] = a.w + (i + m) * a.w_stride;
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) x[n] = a.x[r + n];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) sum[m][n] = zero();
  int64_t k = 0;
  for (; k + 32 <= a.cols; k += 32) {
    __m512bh xs[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) xs[n] = rounded(x[n] + k);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const __m512bh ws = bits(_mm512_loadu_si512(w[m] + k * 2));
      if constexpr (N <= kMemoryBoundRows) prefetch_rows<M>(a, w[m] + k * 2);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[m][n] = _mm512_dpbf16_ps(sum[m][n], ws, xs[n]);
    }
  }
  if (k < a.cols) {
    const int rest = int(a.cols - k);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const __m512bh ws = bits(_mm512_maskz_loadu_epi16(__mmask32((1u << rest) - 1u), w[m] + k * 2));
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[m][n] = _mm512_dpbf16_ps(sum[m][n], ws, rounded_part(x[n] + k, rest));
    }
  }
  store_block<M, N>(a, i, r, sum);
}

template <int N>
void bf16_rows(const MatmulTile& a, int64_t r) {
  int64_t i = 0;
  for (; i + 4 <= a.n; i += 4) bf16_block<4, N>(a, i, r);
  for (; i < a.n; ++i) bf16_block<1, N>(a, i, r);
}

void bf16_matmul(const MatmulTile& a) {
  int64_t r = 0;
  for (; r + 4 <= a.rows; r += 4) bf16_rows<4>(a, r);
  for (; r + 2 <= a.rows; r += 2) bf16_rows<2>(a, r);
  if (r < a.rows) bf16_rows<1>(a, r);
}

constexpr Kernels with_bf16() {
  Kernels k = kKernels;
  k.bf16_weights = bf16_matmul;
  return k;
}
constexpr Kernels kBf16Kernels = with_bf16();

}  // namespace

const Kernels& avx512_bf16_kernels() { return kBf16Kernels; }
}  // namespace ef::cpu
#endif
