// Products of many rows on tensor cores. A block of four warps computes 128 outputs of a tile of rows, each warp 32 of
// them for all its rows. Weights do not pass through shared memory: in the fragments of a product a lane holds a row of
// the weights, so it reads that row's storage, an octet (eight columns) of every 32, and makes halves of it where they
// are needed. What makes that possible is that a sum's columns may come in any order: octet t of a group of 32 belongs
// to lane t of four, and the activations are stored in the order that follows (narrow.cuh).
#pragma once
#include <type_traits>

#include "formats.cuh"
#include "gemm_few.cuh"
#include "gemm_task.cuh"
#include "halves.cuh"
#include "mma.cuh"

namespace ef::cuda {

/// A lane's octets of one row in the two groups of a step, as they are stored: load() reads them, or keeps what it can
/// of the step before; prepare() is called by all lanes of a warp before halves() gives the pairs of one group. kLift:
/// halves are the weights times 2 ^ kLift, so that small scales keep their bits. group(): which groups of 32 columns a
/// step consists of. This general form converts when it loads.
template <class F>
struct Piece {
  static constexpr int kLift = 6;
  static constexpr bool kBrain = false;
  uint32_t pairs[2][4];

  static __device__ int64_t group(int step, int g) { return 2 * int64_t(step) + g; }
  template <class Row>
  __device__ void load(const Row& row, int step, int t, int64_t cols, const Piece&) {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int64_t o = 4 * group(step, g) + t;
      float v[8] = {};
      if (8 * o + 8 <= cols) {
        F::octet(plain(row.data), o, v);
      } else if constexpr (F::kElements == 1) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (8 * o + i < cols) v[i] = F::one(plain(row.data), 8 * o + i);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) pairs[g][j] = pair_of(v[2 * j] * float(1 << kLift), v[2 * j + 1] * float(1 << kLift));
    }
  }
  __device__ void prepare(int, int) {}
  template <class Row>
  __device__ void halves(const Row&, int, int g, int, uint32_t (&out)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = pairs[g][j];
  }
};

// The loop over columns and the stores, for a tile with up to 16 * kLive rows.
template <class F, int kLive>
__device__ void gemm_tile(const GemmTask& p, const GemmPart& part, const Weights& w, int64_t first_out,
                          const Tile& tile, uint4* stages, const uint32_t* chunk_at, const float* factor_at) {
  using P = Piece<F>;
  constexpr int kStageChunks = 16 * kLive * kStepChunks;
  constexpr bool kTwoPieces = kLive <= 2;  // of the weights; with more rows, registers are scarce and sums take longer
  const int lane = threadIdx.x % 32, t = lane % 4;
  first_out += threadIdx.x / 32 * 32;

  WeightRow row[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t n = min(first_out + 8 * j + lane / 4, part.n - 1);
    row[j].data = w.data + n * row_bytes_of<F>(p.cols);
    row[j].scales = w.scales ? w.scales + n / 128 * ((p.cols + 127) / 128) : nullptr;
  }

  // A thread copies one of the eight chunks of rows r, r + 16, ... Chunk c of row r lies at c ^ (r % 8): no two of the
  // eight rows that a load of fragments reads together share a bank.
  const int r = threadIdx.x / kStepChunks, c = threadIdx.x % kStepChunks;
  const auto copy = [&](int step, int stage) {
    if (step < p.steps) {
      const uint4* from = p.x + 4 * P::group(step, c / 4) + c % 4;
      uint4* to = stages + stage * kStageChunks + r * kStepChunks + (c ^ (r % 8));
#pragma unroll
      for (int i = 0; i < kLive; ++i) copy16_async(to + 16 * kStepChunks * i, from + chunk_at[r + 16 * i], true);
    }
    copy_async_commit();
  };
  for (int i = 0; i < kStages - 1; ++i) copy(i, i);

  P now[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) now[j].load(row[j], 0, t, p.cols, now[j]);

  float sum[kLive][4][4] = {};
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < p.steps; ++step) {
    copy_async_wait<kStages - 2>();
    __syncthreads();  // the step's activations are there, and all warps have left the stage that is filled next
    copy(step + kStages - 1, stage == 0 ? kStages - 1 : stage - 1);
    P next[4];
    if constexpr (kTwoPieces) {
      if (step + 1 < p.steps) {
#pragma unroll
        for (int j = 0; j < 4; ++j) next[j].load(row[j], step + 1, t, p.cols, now[j]);
      }
    }
    const uint4* x = stages + stage * kStageChunks + lane % 16 * kStepChunks;
#pragma unroll
    for (int j = 0; j < 4; ++j) now[j].prepare(step, t);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      uint32_t b[4][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) now[j].halves(row[j], step, g, t, b[j]);
      if constexpr (!kTwoPieces) {
        if (g == 1 && step + 1 < p.steps) {
#pragma unroll
          for (int j = 0; j < 4; ++j) now[j].load(row[j], step + 1, t, p.cols, now[j]);
        }
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint4* at = x + ((4 * g + 2 * k + lane / 16) ^ (lane % 8));
#pragma unroll
        for (int m = 0; m < kLive; ++m) {
          uint32_t a[4];
          ldmatrix_x4(a, at + 16 * kStepChunks * m);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const uint32_t pair[2] = {b[j][2 * k], b[j][2 * k + 1]};
            if constexpr (P::kBrain)
              mma_bf16(sum[m][j], a, pair);
            else
              mma_f16(sum[m][j], a, pair);
          }
        }
      }
    }
    if constexpr (kTwoPieces) {
#pragma unroll
      for (int j = 0; j < 4; ++j) now[j] = next[j];
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

  // A lane holds outputs 2t and 2t + 1 of every eight, in rows lane / 4 and lane / 4 + 8 of every sixteen.
  constexpr float kUnlift = 1.f / float(1 << P::kLift);
  const bool by_two = (reinterpret_cast<uintptr_t>(part.out) | uintptr_t(4 * part.out_stride)) % 8 == 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t n = first_out + 8 * j + 2 * t;
    if (n >= part.n) break;
    const bool both = n + 1 < part.n;
    const float bias0 = w.bias ? w.bias[n] : 0.f, bias1 = w.bias && both ? w.bias[n + 1] : 0.f;
#pragma unroll
    for (int m = 0; m < kLive; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = 16 * m + 8 * half + lane / 4;
        if (at >= tile.rows) continue;
        const float factor = factor_at[at] * kUnlift;
        float v0 = sum[m][j][2 * half] * factor + bias0, v1 = sum[m][j][2 * half + 1] * factor + bias1;
        const int64_t place = int64_t(tile.first) + at;
        float* out = part.out + (p.out_row ? p.out_row[place] : place) * part.out_stride + n;
        if (by_two && both) {
          if (p.add) {
            const float2 old = *reinterpret_cast<const float2*>(out);
            v0 = old.x + p.add_scale * v0, v1 = old.y + p.add_scale * v1;
          }
          *reinterpret_cast<float2*>(out) = make_float2(v0, v1);
        } else {
          out[0] = p.add ? out[0] + p.add_scale * v0 : v0;
          if (both) out[1] = p.add ? out[1] + p.add_scale * v1 : v1;
        }
      }
    }
  }
}

// kFrags: a tile has up to 16 * kFrags rows. Those with fewer take a loop that multiplies by quarters as they need.
template <class F, int kFrags>
__global__ void __launch_bounds__(kGemmThreads, kFrags > 4 ? 2 : 3) gemm_kernel(const GemmTask p) {
  EF_DYNAMIC_SHARED(uint4, stages);
  auto* chunk_at = reinterpret_cast<uint32_t*>(stages + kStages * 16 * kFrags * kStepChunks);  // [16 * kFrags]
  auto* factor_at = reinterpret_cast<float*>(chunk_at + 16 * kFrags);                          // [16 * kFrags]
  let_later_start();
  wait_for_earlier();

  const GemmBlock block(p);
  const Tile& tile = block.tile;
  if (tile.rows == 0) return;
  for (int i = threadIdx.x; i < 16 * kFrags; i += kGemmThreads) {
    // Rows beyond the tile's are computed and not stored.
    const int64_t x_row = x_row_at(p, tile, i);
    chunk_at[i] = uint32_t(x_row * p.chunks);
    factor_at[i] = p.factor[x_row];
  }
  const GemmPart& part = p.part[block.index];
  const Weights w = block.weights(p);
  const int64_t first_out = int64_t(int(blockIdx.x) - part.first_block) * kGemmOutputs;
  __syncthreads();

  const auto run = [&](auto live) {
    gemm_tile<F, decltype(live)::value>(p, part, w, first_out, tile, stages, chunk_at, factor_at);
  };
  const int sixteens = (tile.rows + 15) / 16;
  constexpr int kQuarter = kFrags / 4;
  if (sixteens <= kQuarter)
    run(std::integral_constant<int, kQuarter>());
  else if (sixteens <= 2 * kQuarter)
    run(std::integral_constant<int, 2 * kQuarter>());
  else if (sixteens <= 3 * kQuarter)
    run(std::integral_constant<int, 3 * kQuarter>());
  else
    run(std::integral_constant<int, kFrags>());
}

template <class F>
cudaError_t launch_gemm(GemmTask p, cudaStream_t stream) {
  if (p.few) return launch_gemm_few<F>(p, stream);
  place_parts(p, kGemmOutputs);
  const int64_t tiles = p.tiles ? p.most_tiles : (p.rows + p.tile_rows - 1) / p.tile_rows;
  Shape shape;
  shape.grid = dim3(unsigned(blocks_of(p, kGemmOutputs)), unsigned(tiles));
  shape.block = kGemmThreads;
  const int frags = p.tile_rows > 64 ? 8 : 4;
  shape.shared = size_t(16 * frags) * (kStages * kStepChunks * sizeof(uint4) + sizeof(uint32_t) + sizeof(float));
  shape.start = Start::kEarly;
  return frags == 8 ? launch(gemm_kernel<F, 8>, shape, stream, p) : launch(gemm_kernel<F, 4>, shape, stream, p);
}

}  // namespace ef::cuda
