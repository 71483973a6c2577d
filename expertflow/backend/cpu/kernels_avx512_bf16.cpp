// AVX-512 with VNNI and BF16: products with BF16 weights take the activations rounded to BF16, as the format's own
// arithmetic does elsewhere.
#ifdef EF_CPU_X86
#include "expertflow/backend/cpu/sums_vnni.h"
//
#include "expertflow/backend/cpu/kernels_simd.h"

namespace ef::cpu {
namespace {

inline __m512bh bits(__m512i v) { return (__m512bh)v; }

// Thirty-two numbers as BF16, pairs in the order of the weights; the last few of a row with zeros behind them.
inline __m512bh rounded(const float* x, int64_t n) {
  if (n >= 32) return _mm512_cvtne2ps_pbh(load(x + 16), load(x));
  const V low = load_part(x, part_of(n < 16 ? int(n) : 16));
  const V high = n > 16 ? load_part(x + 16, part_of(int(n) - 16)) : zero();
  return _mm512_cvtne2ps_pbh(high, low);
}

// Rows of x rounded beforehand, for as many columns as fit the buffer.
constexpr int64_t kPieceCols = 4096;
struct Piece {
  const __m512i* x[4];
  int64_t begin, end;  // columns
};

template <int M, int N>
void bf16_block(const MatmulTile& a, int64_t i, const Piece& piece, V (&sum)[M][N]) {
  const std::byte* w[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) w[m] = a.w + (i + m) * a.w_stride;
  for (int64_t k = piece.begin; k < piece.end; k += 32) {
    const int64_t rest = piece.end - k, v = (k - piece.begin) / 32;
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const __m512i weights = rest >= 32 ? _mm512_loadu_si512(w[m] + k * 2)
                                         : _mm512_maskz_loadu_epi16(__mmask32((1u << rest) - 1u), w[m] + k * 2);
      if constexpr (N <= kMemoryBoundRows) prefetch_rows<M>(a, w[m] + k * 2);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[m][n] = _mm512_dpbf16_ps(sum[m][n], bits(weights), bits(piece.x[n][v]));
    }
  }
}

template <int N>
void bf16_rows(const MatmulTile& a, int64_t r) {
  alignas(64) __m512i buffer[N][kPieceCols / 32];
  // Sums of a row of weights with N of x, kept between pieces.
  constexpr int64_t kRows = 32;
  V sums[kRows / 4][4][N];
  for (int64_t first = 0; first < a.n; first += kRows) {
    const int64_t end = a.n - first < kRows ? a.n : first + kRows, whole = first + (end - first) / 4 * 4;
    for (auto& group : sums)
      for (auto& row : group)
        for (V& sum : row) sum = zero();
    for (int64_t k = 0; k < a.cols; k += kPieceCols) {
      Piece piece{{}, k, a.cols - k < kPieceCols ? a.cols : k + kPieceCols};
      for (int n = 0; n < N; ++n) {
        for (int64_t c = k; c < piece.end; c += 32)
          buffer[n][(c - k) / 32] = (__m512i)rounded(a.x[r + n] + c, piece.end - c);
        piece.x[n] = buffer[n];
      }
      for (int64_t i = first; i < whole; i += 4) bf16_block<4, N>(a, i, piece, sums[(i - first) / 4]);
      for (int64_t i = whole; i < end; ++i) {
        V(&one)[1][N] = *reinterpret_cast<V(*)[1][N]>(&sums[kRows / 4 - 1][i - whole]);
        bf16_block<1, N>(a, i, piece, one);
      }
    }
    for (int64_t i = first; i < whole; i += 4) store_block<4, N>(a, i, r, sums[(i - first) / 4]);
    for (int64_t i = whole; i < end; ++i)
      store_block<1, N>(a, i, r, *reinterpret_cast<V(*)[1][N]>(&sums[kRows / 4 - 1][i - whole]));
  }
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
