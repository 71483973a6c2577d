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
  const int lane = int(threadIdx.x) % kLanes, warps = int(blockDim.x) / kLanes;
  const float sum = fold(v, kLanes);
  if (lane < R) partial[int(threadIdx.x) / kLanes * R + lane] = sum;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < R; ++r) v[r] = 0;
  for (int w = 0; w < warps; ++w)
#pragma unroll
    for (int r = 0; r < R; ++r) v[r] += partial[w * R + r];
}

// f(r, i, value[4]) for the block's shares of rows r < R.
template <int R, class RowOf, class F>
__device__ void for_fours(RowOf row_of, int rows, int cols, F f) {
  const int step = 4 * int(blockDim.x);
  for (int first = 0; first < cols; first += step) {
    const int i = first + 4 * int(threadIdx.x);
    float v[R][4];
#pragma unroll
    for (int r = 0; r < R; ++r)
      if (r < rows)
        load_four(row_of(r), i, cols, v[r]);
      else
        v[r][0] = v[r][1] = v[r][2] = v[r][3] = 0;
    f(i, v);
  }
}

// Rows r < rows of the input, norm(row_of(r)) where a norm is asked for, and zeros up to row R. All threads of the
// block; __syncthreads() before they are read.
template <int R, class Rows, class RowOf>
__device__ void prepare_rows(const Rows& out, const Input& in, RowOf row_of, int rows, int cols, float* partial,
                             bool write_normed) {
  float mean[R] = {}, scale[R];
  if (in.norm_weight) {
    if (in.centred) {
      for_fours<R>(row_of, rows, cols, [&](int, const float(&v)[R][4]) {
#pragma unroll
        for (int r = 0; r < R; ++r) mean[r] += (v[r][0] + v[r][1]) + (v[r][2] + v[r][3]);
      });
      block_sums(mean, partial);
      for (int r = 0; r < R; ++r) mean[r] /= float(cols);
      __syncthreads();
    }
    for (int r = 0; r < R; ++r) scale[r] = 0;
    for_fours<R>(row_of, rows, cols, [&](int i, const float(&v)[R][4]) {
#pragma unroll
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) {
          const float d = i + j < cols ? v[r][j] - mean[r] : 0.f;
          scale[r] = fmaf(d, d, scale[r]);
        }
    });
    block_sums(scale, partial);
    for (int r = 0; r < R; ++r) scale[r] = 1.f / sqrtf(scale[r] / float(cols) + in.eps);
  }
  for_fours<R>(row_of, rows, cols, [&](int i, float(&v)[R][4]) {
    if (in.norm_weight) {
      float weight[4], bias[4] = {};
      load_four(in.norm_weight, i, cols, weight);
      if (in.norm_bias) load_four(in.norm_bias, i, cols, bias);
#pragma unroll
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < 4; ++j) v[r][j] = r < rows ? (v[r][j] - mean[r]) * scale[r] * weight[j] + bias[j] : 0.f;
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      place(out, r, i, cols, v[r]);
      if (!write_normed || r >= rows) continue;
      for (int j = 0; j < 4; ++j)
        if (i + j < cols) in.normed[int64_t(r) * cols + i + j] = v[r][j];
    }
  });
}

}  // namespace ef::cuda
