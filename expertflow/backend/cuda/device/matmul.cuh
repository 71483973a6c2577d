// Products of few activations with stored weights. A warp computes N rows of the weights against up to R rows of
// activations: lane l takes octets l, l + 32, ... of the row, each lane adds in ascending order, and a fixed butterfly
// joins the lanes. That order depends on the width alone, so a row's bits are the same in any company.
#pragma once
#include "formats.cuh"
#include "launch.cuh"

namespace ef::cuda {

constexpr int kMatmulWarps = 8;

__device__ inline float warp_sum(float v) {
  for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
}

__device__ inline void load_x(const float* x, float* out) {
  if (reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    const float4 a = reinterpret_cast<const float4*>(x)[0], b = reinterpret_cast<const float4*>(x)[1];
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
  } else {
    for (int j = 0; j < 8; ++j) out[j] = x[j];
  }
}

template <class F, int R, int N>
__global__ void __launch_bounds__(32 * kMatmulWarps) matmul_kernel(const MatmulParams p) {
  const int lane = threadIdx.x % 32;
  const int64_t outputs = p.n * p.matrices;
  const int64_t first_out = (int64_t(blockIdx.x) * kMatmulWarps + threadIdx.x / 32) * N;
  if (first_out >= outputs) return;
  const int head = blockIdx.z;
  Tile tile;
  if (p.tiles) {
    tile = p.tiles[blockIdx.y];
  } else {
    tile.first = int32_t(blockIdx.y) * R;  // R is kTileRows, or there is one row
    tile.rows = int32_t(min(int64_t(R), p.rows - tile.first));
  }
  const Group* group = p.groups ? p.groups + tile.group : &p.single;

  const float* x[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int64_t i = tile.first + (r < tile.rows ? r : 0);
    x[r] = p.x + (p.x_row ? p.x_row[i] / p.x_divisor : i) * p.x_stride + head * p.x_head_stride;
  }
  const uint8_t* w[N];
  const float* scales[N];
  const int64_t scale_blocks = (p.cols + 127) / 128;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int64_t at = min(first_out + n, outputs - 1);
    const Weights& m = group->w[p.first_matrix + at / p.n];
    const int64_t row = head * p.n + at % p.n;
    w[n] = m.data + row * row_bytes_of<F>(p.cols);
    scales[n] = m.scales ? m.scales + row / 128 * scale_blocks : nullptr;
  }

  float sum[N][R] = {};
  const int64_t octets = p.cols / 8;
#pragma unroll 2
  for (int64_t o = lane; o < octets; o += 32) {
    float weight[N][8];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      F::octet(w[n], o, weight[n]);
      if constexpr (F::kBytes == 1 && F::kElements == 1) {
        if (scales[n]) {
          const float factor = scales[n][o / 16];
          for (int j = 0; j < 8; ++j) weight[n][j] *= factor;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (r >= tile.rows) break;
      float v[8];
      load_x(x[r] + 8 * o, v);
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[n][r] = fmaf(weight[n][j], v[j], sum[n][r]);
    }
  }
  if constexpr (F::kElements == 1) {  // widths that are no multiple of eight
    const int64_t at = 8 * octets + lane;
    if (at < p.cols) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float weight = F::one(w[n], at);
        if (scales[n]) weight *= scales[n][at / 128];
#pragma unroll
        for (int r = 0; r < R; ++r)
          if (r < tile.rows) sum[n][r] = fmaf(weight, x[r][at], sum[n][r]);
      }
    }
  }

#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (r >= tile.rows) break;
      const float total = warp_sum(sum[n][r]);
      const int64_t at = first_out + n;
      if (lane != 0 || at >= outputs) continue;
      const float* bias = group->w[p.first_matrix + at / p.n].bias;
      const int64_t i = tile.first + r;
      p.out[(p.out_row ? p.out_row[i] : i) * p.out_stride + head * p.out_head_stride + at] =
          bias ? total + bias[at % p.n] : total;
    }
  }
}

template <class F>
cudaError_t launch_matmul(const MatmulParams& p, cudaStream_t stream) {
  const int64_t outputs = p.n * p.matrices;
  const bool one = (p.tiles ? p.most_rows : p.rows) == 1;
  const int rows_of_block = one ? 1 : 2;
  const int64_t per_block = kMatmulWarps * rows_of_block;
  const int64_t tiles = p.tiles ? p.tile_count : (p.rows + kTileRows - 1) / kTileRows;
  constexpr int64_t kMostTiles = 65535;  // of the grid's second axis
  for (int64_t first = 0; first < tiles; first += kMostTiles) {
    MatmulParams part = p;
    const int64_t count = min(kMostTiles, tiles - first);
    if (p.tiles) {
      part.tiles += first;
    } else {
      part.rows = min(p.rows - first * kTileRows, count * kTileRows);
      part.x += first * kTileRows * p.x_stride;
      part.out += first * kTileRows * p.out_stride;
    }
    const dim3 grid(unsigned((outputs + per_block - 1) / per_block), unsigned(count), unsigned(p.heads));
    const cudaError_t error =
        launch(one ? matmul_kernel<F, 1, 1> : matmul_kernel<F, kTileRows, 2>, {grid, 32 * kMatmulWarps}, stream, part);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t matmul_scalar(const MatmulParams&, cudaStream_t);
cudaError_t matmul_block32(const MatmulParams&, cudaStream_t);
cudaError_t matmul_block256(const MatmulParams&, cudaStream_t);

}  // namespace ef::cuda
