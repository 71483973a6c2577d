// The loops of kernels.h written once over vectors of kLanes floats. Included at the end of a file per instruction set,
// which defines before, in this same unnamed namespace: V, Part, kLanes, kRowBlock (rows of x that fit the registers),
// part_of, load, load_part, store, store_part, keep, zero, set1, add, sub, mul, div, fma, min, max, pow2_of_rounded,
// round, fold (V -> __m128 by halves), kQuad and what add_quads takes, kHeadBlock (heads whose sums fit the registers
// twice), and the element types F32, F16, BF16, F8 with kBytes, load and load_part. No std::
// function may be called here: see kernels.h.
#pragma once
#include "expertflow/backend/cpu/dequantize_simd.h"

namespace ef::cpu {
namespace {

// (q0 + q2) + (q1 + q3) after folding: the one tree, here for one vector and for four at once.
inline float add_lanes(V v) {
  const __m128 q = fold(v);
  const __m128 pairs = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
}
inline __m128 add_lanes(V a, V b, V c, V d) {
  __m128 q0 = fold(a), q1 = fold(b), q2 = fold(c), q3 = fold(d);
  _MM_TRANSPOSE4_PS(q0, q1, q2, q3);
  return _mm_add_ps(_mm_add_ps(q0, q2), _mm_add_ps(q1, q3));
}

// With so few rows of x the weights take longer to come than to be used: the next M rows are asked for meanwhile.
constexpr int kMemoryBoundRows = 2;
template <int M>
void prefetch_rows(const MatmulTile& a, const std::byte* w) {
  _mm_prefetch(reinterpret_cast<const char*>(w + M * a.w_stride), _MM_HINT_T0);
}

// The same tree over four rows of kQuad folded vectors each: part j holds the four sums of vector j.
inline V add_quads(const V (&rows)[4]) {
  const V even = add(low_pairs(rows[0], rows[1]), high_pairs(rows[0], rows[1]));
  const V odd = add(low_pairs(rows[2], rows[3]), high_pairs(rows[2], rows[3]));
  return add(low_doubles(even, odd), high_doubles(even, odd));
}

// The lane sums of a block, biases added.
template <int M, int N>
[[gnu::always_inline]] inline void store_block(const MatmulTile& a, int64_t i, int64_t r, V (&sum)[M][N]) {
  int n = 0;
  if constexpr (M == 4) {
    // Four rows of w and kQuad of x fill one vector with their results.
    const __m128 bias = a.bias ? _mm_loadu_ps(a.bias + i) : _mm_setzero_ps();
#pragma GCC unroll 8
    for (; n + kQuad <= N; n += kQuad) {
      V rows[4];
#pragma GCC unroll 4
      for (int m = 0; m < 4; ++m) rows[m] = add_halves(&sum[m][n]);
      const V quads = add_quads(rows);
#pragma GCC unroll 4
      for (int j = 0; j < kQuad; ++j) {
        const __m128 v = part_of_quads(quads, j);
        _mm_storeu_ps(a.out[r + n + j] + a.out_begin + i, a.bias ? _mm_add_ps(v, bias) : v);
      }
    }
  }
#pragma GCC unroll 8
  for (; n < N; ++n) {
    float* out = a.out[r + n] + a.out_begin + i;
    if constexpr (M == 4) {
      __m128 v = add_lanes(sum[0][n], sum[1][n], sum[2][n], sum[3][n]);
      if (a.bias) v = _mm_add_ps(v, _mm_loadu_ps(a.bias + i));
      _mm_storeu_ps(out, v);
    } else {
      static_assert(M == 1);
      const float v = add_lanes(sum[0][n]);
      *out = a.bias ? v + a.bias[i] : v;
    }
  }
}

// M rows of w against N rows of x. One vector accumulator an element whatever M and N are: the order of summation is
// fixed.
template <class T, int M, int N>
void block(const MatmulTile& a, int64_t i, int64_t r) {
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
  for (; k + kLanes <= a.cols; k += kLanes) {
    V xs[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) xs[n] = load(x[n] + k);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const V ws = T::load(w[m] + k * T::kBytes);
      if constexpr (N <= kMemoryBoundRows) prefetch_rows<M>(a, w[m] + k * T::kBytes);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[m][n] = fma(ws, xs[n], sum[m][n]);
    }
  }
  if (k < a.cols) {
    const int rest = int(a.cols - k);
    const Part part = part_of(rest);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const V ws = T::load_part(w[m] + k * T::kBytes, rest);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[m][n] = fma(ws, load_part(x[n] + k, part), sum[m][n]);
    }
  }

  store_block<M, N>(a, i, r, sum);
}

template <class T, int N>
void rows_of_x(const MatmulTile& a, int64_t r) {
  int64_t i = 0;
  for (; i + 4 <= a.n; i += 4) block<T, 4, N>(a, i, r);
  for (; i < a.n; ++i) block<T, 1, N>(a, i, r);
}

// The at most N rows that are left.
template <class T, int N>
void last_rows(const MatmulTile& a, int64_t r) {
  if (a.rows - r == N) return rows_of_x<T, N>(a, r);
  if constexpr (N > 1) last_rows<T, N - 1>(a, r);
}

template <class T>
void matmul(const MatmulTile& a) {
  int64_t r = 0;
  for (; r + kRowBlock <= a.rows; r += kRowBlock) rows_of_x<T, kRowBlock>(a, r);
  last_rows<T, kRowBlock - 1>(a, r);
}

// H heads, C vectors of dimensions from d on. Positions one after the other, so an element's order is that of the
// positions.
template <class T, int H, int C>
void weighted_block(const WeightedSum& a, int h0, int64_t d) {
  V sum[H][C];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sum[h][c] = load(a.out[h0 + h] + d + c * kLanes);
  const std::byte* v = a.v + d * T::kBytes;
  const float* p[H];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) p[h] = a.p[h0 + h] + a.p_begin;
  for (int64_t t = 0; t < a.n; ++t, v += a.v_stride) {
    V vs[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) vs[c] = T::load(v + c * kLanes * T::kBytes);
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
      const V ps = set1(p[h][t]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sum[h][c] = fma(ps, vs[c], sum[h][c]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(a.out[h0 + h] + d + c * kLanes, sum[h][c]);
}

template <class T>
void weighted_rest(const WeightedSum& a, int h, int64_t d) {
  const int rest = int(a.dim - d);
  const Part part = part_of(rest);
  V sum = load_part(a.out[h] + d, part);
  for (int64_t t = 0; t < a.n; ++t)
    sum = fma(set1(a.p[h][a.p_begin + t]), T::load_part(a.v + t * a.v_stride + d * T::kBytes, rest), sum);
  store_part(a.out[h] + d, sum, part);
}

template <class T, int H>
void weighted_heads(const WeightedSum& a, int h) {
  int64_t d = 0;
  for (; d + 2 * kLanes <= a.dim; d += 2 * kLanes) weighted_block<T, H, 2>(a, h, d);
  for (; d + kLanes <= a.dim; d += kLanes) weighted_block<T, H, 1>(a, h, d);
  if (d < a.dim)
    for (int i = 0; i < H; ++i) weighted_rest<T>(a, h + i, d);
}

template <class T>
void weighted_sum(const WeightedSum& a) {
  int h = 0;
  for (; h + kHeadBlock <= a.heads; h += kHeadBlock) weighted_heads<T, kHeadBlock>(a, h);
  for (; h + 4 <= a.heads; h += 4) weighted_heads<T, 4>(a, h);
  for (; h + 2 <= a.heads; h += 2) weighted_heads<T, 2>(a, h);
  if (h < a.heads) weighted_heads<T, 1>(a, h);
}

// exp by 2^n * e^r with |r| <= ln(2)/2 and the Taylor polynomial of degree 7 (its last term is below 2^-25). Relative
// error within 2 units in the last place; 0 below -87.3 (no subnormals), infinity above 88.7, NaN stays.
inline V exp_of(V v) {
  const V x = min(set1(88.8f), max(set1(-87.5f), v));
  const V n = round(mul(x, set1(1.44269504088896341f)));
  V r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  V p = set1(1.f / 5040);
  p = fma(p, r, set1(1.f / 720));
  p = fma(p, r, set1(1.f / 120));
  p = fma(p, r, set1(1.f / 24));
  p = fma(p, r, set1(1.f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.f));
  p = fma(p, r, set1(1.f));
  return mul(p, pow2_of_rounded(n));
}

void scale(const float* x, int64_t n, float factor, float* out) {
  const V f = set1(factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, mul(load(x + i), f));
  if (i == n) return;
  const Part part = part_of(int(n - i));
  store_part(out + i, mul(load_part(x + i, part), f), part);
}

float scale_max(float* s, int64_t n, float scale, float least) {
  V best = set1(least);
  const V factor = set1(scale);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V v = mul(load(s + i), factor);
    store(s + i, v);
    best = max(v, best);
  }
  float lanes[kLanes];
  store(lanes, best);
  for (; i < n; ++i) {
    s[i] *= scale;
    if (s[i] > least) least = s[i];
  }
  for (int lane = 0; lane < kLanes; ++lane)
    if (lanes[lane] > least) least = lanes[lane];
  return least;
}

float exp_sum(float* s, int64_t n, float largest) {
  V sum = zero();
  const V shift = set1(largest);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V v = exp_of(sub(load(s + i), shift));
    store(s + i, v);
    sum = add(sum, v);
  }
  if (i < n) {
    const Part part = part_of(int(n - i));
    const V v = keep(exp_of(sub(load_part(s + i, part), shift)), part);
    store_part(s + i, v, part);
    sum = add(sum, v);
  }
  return add_lanes(sum);
}

// Calls f(gate, up) -> out over vectors, the last one padded.
template <class F>
inline void gated(const float* gate, const float* up, float* out, int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(gate + i), load(up + i)));
  if (i == n) return;
  const Part part = part_of(int(n - i));
  store_part(out + i, f(load_part(gate + i, part), load_part(up + i, part)), part);
}

void silu_mul(const float* gate, const float* up, float* out, int64_t n) {
  gated(gate, up, out, n, [](V g, V u) { return mul(div(g, add(set1(1.f), exp_of(sub(zero(), g)))), u); });
}

void clamped_swiglu(const float* gate, const float* up, float* out, int64_t n, float alpha, float limit) {
  gated(gate, up, out, n, [alpha, limit](V gate_in, V up_in) {
    // min and max return their second operand where one is NaN.
    const V g = min(set1(limit), gate_in);
    const V u = min(set1(limit), max(set1(-limit), up_in));
    const V gated_by = div(g, add(set1(1.f), exp_of(mul(set1(-alpha), g))));
    return mul(add(u, set1(1.f)), gated_by);
  });
}

}  // namespace
}  // namespace ef::cpu

#include "expertflow/backend/cpu/tiles_simd.h"

namespace ef::cpu {
namespace {

constexpr Kernels kKernels = {
    .matmul = {matmul<F32>, matmul<F16>, matmul<BF16>},
    .bf16_weights = nullptr,
    .f8_weights = matmul<F8>,
    .weighted_sum = {weighted_sum<F32>, weighted_sum<F16>, weighted_sum<BF16>},
    .scale = scale,
    .scale_max = scale_max,
    .exp_sum = exp_sum,
    .silu_mul = silu_mul,
    .clamped_swiglu = clamped_swiglu,
    .dequantize = kDequantize.row,
    .quantize_row = quantize_row,
    .tiles = kTiles.row,
};

}  // namespace
}  // namespace ef::cpu
