// A product's activations on their way to shared memory: normalised, then rounded to 8 bits or as they are.
#pragma once
#include "matvec.cuh"

namespace ef::cuda {

// Elements i to i + 3 of n; zeros past the end.
__device__ inline void load_four(const float* p, int i, int n, float (&v)[4]) {
  if (i + 4 <= n && reinterpret_cast<uintptr_t>(p + i) % 16 == 0) {
    const float4 four = *reinterpret_cast<const float4*>(p + i);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
  } else {
    for (int j = 0; j < 4; ++j) v[j] = i + j < n ? p[i + j] : 0.f;
  }
}

// Elements i to i + 3 of row r, i a multiple of 4; eight neighbouring lanes have a group of 32. Rounded as on the CPU:
// the largest magnitude becomes 127, to the nearest; the scale is NaN where a number is not finite.
__device__ inline void place(const QuantizedRows& rows, int r, int i, int n, const float (&v)[4]) {
  uint32_t top = 0;
  for (int j = 0; j < 4; ++j) top = max(top, __float_as_uint(v[j]) & 0x7fffffffu);
  for (int mask = 1; mask < 8; mask *= 2) top = max(top, __shfl_xor_sync(0xffffffffu, top, mask));
  const float largest = __uint_as_float(top);
  const bool finite = top < 0x7f800000u, some = finite && largest >= 1e-30f;
  const float factor = some ? 127.f / largest : 0.f;
  uint32_t codes = 0;
  for (int j = 0; j < 4; ++j) codes |= (uint32_t(__float2int_rn(v[j] * factor)) & 255u) << (8 * j);
  int sum = __dp4a(int(codes), 0x01010101, 0);
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  const int other = __shfl_xor_sync(0xffffffffu, sum, 4);
  if (i >= n) return;
  *reinterpret_cast<uint32_t*>(rows.memory + r * rows.stride + unit_at(i / 16) + i % 16) = codes;
  if (i % 32 != 0) return;
  const float scale = some ? largest / 127.f : finite ? 0.f : __uint_as_float(0x7fc00000u);
  const int group = i / 32;
  rows.scale(r)[group] = scale;
  rows.sum(r)[group] = scale * float(sum + other);
  rows.half_sum(r, 0)[group] = scale * float(sum);
  rows.half_sum(r, 1)[group] = scale * float(other);
}
__device__ inline void place(const FloatRows& rows, int r, int i, int n, const float (&v)[4]) {
  if (i < n)
    *reinterpret_cast<float4*>(rows.memory + r * rows.stride + unit_at(i / 4)) = make_float4(v[0], v[1], v[2], v[3]);
}

// Sums over the block's threads, the same at all of them. partial: [warps, R].
template <int R>
__device__ void block_sums(float (&v)[R], float* partial) {
  const int lane = int(threadIdx.x) % kLanes, sums = int(blockDim.x) / kLanes * R;
  const float of_warp = fold(v, kLanes);
  if (lane < R) partial[int(threadIdx.x) / kLanes * R + lane] = of_warp;
  __syncthreads();
  // Lane l adds the sums of row l % R, and the lanes of a row join.
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMostWarps * R; i += kLanes)
    if (i + lane < sums) sum += partial[i + lane];
#pragma unroll
  for (int mask = R; mask < kLanes; mask *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
#pragma unroll
  for (int r = 0; r < R; ++r) v[r] = __shfl_sync(0xffffffffu, sum, r);
}

// A thread's first four elements of each row: what it takes of a norm's weights before the kernel may look at its
// input, and of the input only once.
template <int R>
struct Fours {
  float v[R][4];

  // Elements i to i + 3.
  template <class RowOf>
  __device__ void load(RowOf row_of, int rows, int i, int cols) {
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (r < rows)
        load_four(row_of(r), i, cols, v[r]);
      else
        v[r][0] = v[r][1] = v[r][2] = v[r][3] = 0;
  }
};

struct NormWeights {
  __device__ NormWeights(const Input& in, int cols) : in(in), cols(cols), share(1.f / float(cols)) {
    load(4 * int(threadIdx.x));
  }
  __device__ void load(int i) {
    if (in.norm_weight) load_four(in.norm_weight, i, cols, weight);
    if (in.norm_bias) load_four(in.norm_bias, i, cols, bias);
  }
  const Input& in;
  int cols;
  float share;  // of a mean, that an element is
  float weight[4] = {}, bias[4] = {};
};

// Rows r < rows of the input, norm(row_of(r)) where a norm is asked for, and zeros up to row R. `first` has been
// loaded from them. All threads of the block; __syncthreads() before they are read.
template <int R, class Rows, class RowOf>
__device__ void prepare_rows(const Rows& out, NormWeights& norm, const Fours<R>& first, RowOf row_of, int rows,
                             float* partial, bool write_normed) {
  const Input& in = norm.in;
  const int cols = norm.cols, mine = 4 * int(threadIdx.x), step = 4 * int(blockDim.x);
  // f(i, values) for the thread's elements; all threads of a warp take part.
  const auto for_fours = [&](auto f) {
    f(mine, first.v);
    for (int at = step; at < cols; at += step) {
      Fours<R> more;
      more.load(row_of, rows, at + mine, cols);
      f(at + mine, more.v);
    }
  };
  float mean[R] = {}, scale[R] = {};
  if (in.norm_weight) {
    if (in.centred) {
      for_fours([&](int, const float(&v)[R][4]) {
#pragma unroll
        for (int r = 0; r < R; ++r) mean[r] += (v[r][0] + v[r][1]) + (v[r][2] + v[r][3]);
      });
      block_sums(mean, partial);
      for (int r = 0; r < R; ++r) mean[r] *= norm.share;
      __syncthreads();  // the sums have been read
    }
    for_fours([&](int i, const float(&v)[R][4]) {
#pragma unroll
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) {
          const float d = i + j < cols ? v[r][j] - mean[r] : 0.f;
          scale[r] = fmaf(d, d, scale[r]);
        }
    });
    block_sums(scale, partial);
    for (int r = 0; r < R; ++r) scale[r] = rsqrtf(scale[r] * norm.share + in.eps);
  }
  for_fours([&](int i, const float(&given)[R][4]) {
    if (i != mine) norm.load(i);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float v[4];
      for (int j = 0; j < 4; ++j) {
        v[j] = given[r][j];
        if (in.norm_weight) v[j] = r < rows ? (v[j] - mean[r]) * scale[r] * norm.weight[j] + norm.bias[j] : 0.f;
      }
      place(out, r, i, cols, v);
      if (!write_normed || r >= rows) continue;
      for (int j = 0; j < 4; ++j)
        if (i + j < cols) in.normed[int64_t(r) * cols + i + j] = v[j];
    }
  });
}

}  // namespace ef::cuda
