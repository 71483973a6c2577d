// Products of every format with float32 activations: N rows of weights in shared memory share what a lane reads of the
// activations. Scalars go sixteen bytes at a time where their rows are aligned, blocks by octets.
#pragma once
#include "formats.cuh"
#include "shared_rows.cuh"

namespace ef::cuda {

// Numbers from the words of an aligned scalar row, up to eight at once.
__device__ inline void numbers_of(F32, const uint32_t* w, float (&out)[4]) {
  for (int i = 0; i < 4; ++i) out[i] = __uint_as_float(w[i]);
}
__device__ inline void numbers_of(F16, const uint32_t* w, float (&out)[8]) {
  for (int i = 0; i < 4; ++i) {
    const float2 pair = halves_of(w[i]);
    out[2 * i] = pair.x, out[2 * i + 1] = pair.y;
  }
}
__device__ inline void numbers_of(BF16, const uint32_t* w, float (&out)[8]) {
  for (int i = 0; i < 4; ++i)
    out[2 * i] = __uint_as_float(w[i] << 16), out[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
}
// E4M3's bits are those of a binary16 of 2^-8 its size, but for NaN: magnitude 0x7f gets all exponent bits.
__device__ inline void numbers_of(F8, const uint32_t* w, float (&out)[8]) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t two = __byte_perm(w[i / 2], 0, i % 2 ? 0x4342 : 0x4140);
    const uint32_t magnitude = two & 0x007f007fu, sign = (two & 0x00800080u) << 8;
    const uint32_t half = magnitude << 7 | sign | ((magnitude + 0x00010001u) & 0x00800080u) << 7;
    const float2 pair = halves_of(half);
    out[2 * i] = pair.x * 256.f, out[2 * i + 1] = pair.y * 256.f;
  }
}

// What N rows of weights are.
template <int N>
struct FloatTile {
  const uint8_t* row[N];        // in shared memory
  const float* scales[N];       // kF8E4M3: factors of the row's runs of 128 from its first element on, or null
  int first = 0, elements = 0;  // of the row: multiples of 128, but for the row's end
};

template <class F, int N>
__device__ float factor_of(const FloatTile<N>& t, int n, int element) {
  if constexpr (F::kElements == 1 && F::kBytes == 1) return t.scales[n] ? t.scales[n][element / 128] : 1.f;
  return 1.f;
}

template <int kCount, int N, int R>
__device__ void add_numbers(const float (&w)[N][kCount], const FloatRows& x, int unit, float (&acc)[N * R]) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int q = 0; q < kCount / 4; ++q) {
      const float4 v = x.unit(r, unit_at(unit + q));
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float& sum = acc[n * R + r];
        sum = fmaf(w[n][4 * q], v.x, sum), sum = fmaf(w[n][4 * q + 1], v.y, sum);
        sum = fmaf(w[n][4 * q + 2], v.z, sum), sum = fmaf(w[n][4 * q + 3], v.w, sum);
      }
    }
  }
}

// Elements [from, t.elements) one by one.
template <class F, int N, int R>
__device__ void add_ones(const FloatTile<N>& t, int from, int lane, const FloatRows& x, float (&acc)[N * R]) {
#pragma unroll 1
  for (int i = from + lane; i < t.elements; i += 32) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float w = F::one(t.row[n], i) * factor_of<F>(t, n, t.first + i);
#pragma unroll
      for (int r = 0; r < R; ++r) acc[n * R + r] = fmaf(w, x.one(r, t.first + i), acc[n * R + r]);
    }
  }
}

template <class F, int N, int R>
__device__ void add_scalars(const FloatTile<N>& t, int lane, const FloatRows& x, float (&acc)[N * R]) {
  constexpr int kCount = 16 / F::kBytes, kAtOnce = kCount < 8 ? kCount : 8, kParts = kCount / kAtOnce;
  bool aligned = true;
#pragma unroll
  for (int n = 0; n < N; ++n) aligned &= reinterpret_cast<uintptr_t>(t.row[n]) % 16 == 0;
  const int chunks = aligned ? t.elements / kCount : 0;
#pragma unroll 1
  for (int c = lane; c < chunks; c += 32) {
    uint32_t words[N][4];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const uint4 v = reinterpret_cast<const uint4*>(t.row[n])[c];
      words[n][0] = v.x, words[n][1] = v.y, words[n][2] = v.z, words[n][3] = v.w;
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float w[N][kAtOnce];
      const int first = t.first + c * kCount + part * kAtOnce;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        numbers_of(F{}, words[n] + 4 / kParts * part, w[n]);
        if constexpr (F::kBytes == 1) {
          const float factor = factor_of<F>(t, n, first);
          for (int j = 0; j < kAtOnce; ++j) w[n][j] *= factor;
        }
      }
      add_numbers<kAtOnce, N, R>(w, x, first / 4, acc);
    }
  }
  add_ones<F, N, R>(t, chunks * kCount, lane, x, acc);
}

template <class F, int N, int R>
__device__ void add_octets(const FloatTile<N>& t, int lane, const FloatRows& x, float (&acc)[N * R]) {
#pragma unroll 1
  for (int o = lane; o < t.elements / 8; o += 32) {
    float w[N][8];
#pragma unroll
    for (int n = 0; n < N; ++n) F::octet(t.row[n], o, w[n]);
    add_numbers<8, N, R>(w, x, t.first / 4 + 2 * o, acc);
  }
}

// acc[n * R + r] += elements of row n of weights times those of x[r]; the warp's lanes take their shares.
template <int N, int R>
__device__ void add_product(Fmt format, const FloatTile<N>& t, int lane, const FloatRows& x, float (&acc)[N * R]) {
  switch (format) {
    case Fmt::kF32:
      return add_scalars<F32, N, R>(t, lane, x, acc);
    case Fmt::kF16:
      return add_scalars<F16, N, R>(t, lane, x, acc);
    case Fmt::kBF16:
      return add_scalars<BF16, N, R>(t, lane, x, acc);
    case Fmt::kF8E4M3:
      return add_scalars<F8, N, R>(t, lane, x, acc);
    case Fmt::kQ8_0:
      return add_octets<Q8_0, N, R>(t, lane, x, acc);
    case Fmt::kQ4_0:
      return add_octets<Q4_0, N, R>(t, lane, x, acc);
    case Fmt::kQ4_1:
      return add_octets<Q4_1, N, R>(t, lane, x, acc);
    case Fmt::kQ5_0:
      return add_octets<Q5_0, N, R>(t, lane, x, acc);
    case Fmt::kQ5_1:
      return add_octets<Q5_1, N, R>(t, lane, x, acc);
    case Fmt::kQ2K:
      return add_octets<Q2K, N, R>(t, lane, x, acc);
    case Fmt::kQ3K:
      return add_octets<Q3K, N, R>(t, lane, x, acc);
    case Fmt::kQ4K:
      return add_octets<Q4K, N, R>(t, lane, x, acc);
    case Fmt::kQ5K:
      return add_octets<Q5K, N, R>(t, lane, x, acc);
    case Fmt::kQ6K:
      return add_octets<Q6K, N, R>(t, lane, x, acc);
    case Fmt::kIQ4NL:
      return add_octets<IQ4NL, N, R>(t, lane, x, acc);
    case Fmt::kIQ4XS:
      return add_octets<IQ4XS, N, R>(t, lane, x, acc);
    default:
      return add_octets<MXFP4, N, R>(t, lane, x, acc);
  }
}

}  // namespace ef::cuda
