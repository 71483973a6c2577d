// Products of one row of activations with weights of 16 bits, where memory and latency decide. A warp works by itself:
// it holds its columns of the activations in registers, and rows of weights come to its ring in shared memory, several
// ahead, the first of them before the kernel may look at its input. A norm is a factor of the sums, which every warp
// finds from what it holds. Nothing waits for a block but sums over parts of a row.
#pragma once
#include "fast.h"
#include "float_dots.cuh"
#include "matvec.cuh"

namespace ef::cuda::single {

constexpr int kWarps = 8, kThreads = kLanes * kWarps;
constexpr int kChunk = 256, kChunkBytes = 2 * kChunk;  // columns that a warp takes at once: 16 bytes a lane
constexpr int kMostChunks = 8;                         // of a row, or of the part of it that a warp has
constexpr int kMostTopK = 32;

/// A warp's ring: kDepth slots for rows of up to kChunks chunks.
template <int kDepth, int kChunks>
struct RowRing {
  static constexpr int kSlot = kChunks * kChunkBytes;
  static constexpr int kBytes = kWarps * kDepth * kSlot;  // of all warps

  __device__ RowRing(uint8_t* memory, int chunks)
      : lane(int(threadIdx.x) % kLanes),
        chunks(chunks),
        slots(memory + int(threadIdx.x) / kLanes * kDepth * kSlot + 16 * lane) {}

  // Starts the copy of a row, if there is one, to the slot that follows.
  __device__ void load(const uint8_t* row) {
    if (row) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i)
        if (i < chunks) copy16_async(slots + to * kSlot + i * kChunkBytes, row + i * kChunkBytes + 16 * lane, true);
    }
    copy_async_commit();
    to = to + 1 == kDepth ? 0 : to + 1;
  }
  // row_of(0), row_of(1), ..., as many as there is room for.
  template <class RowOf>
  __device__ void fill(RowOf row_of) {
    for (int i = 0; i < kDepth; ++i) load(row_of(i));
  }
  // The product of row `turn` with x, the same at all lanes; row_of(turn + kDepth) takes its place.
  template <class F, class RowOf>
  __device__ float next(F, int turn, const float (&x)[kChunks][8], RowOf row_of) {
    copy_async_wait<kDepth - 1>();
    __syncwarp();
    float part[4] = {};
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (i >= chunks) break;
      const uint4 v = *reinterpret_cast<const uint4*>(slots + from * kSlot + i * kChunkBytes);
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      float w[8];
      numbers_of(F{}, words, w);
#pragma unroll
      for (int j = 0; j < 8; ++j) part[j % 4] = fmaf(w[j], x[i][j], part[j % 4]);
    }
    __syncwarp();  // all lanes have left the slot
    load(row_of(turn + kDepth));
    from = from + 1 == kDepth ? 0 : from + 1;
    const float sum[1] = {(part[0] + part[1]) + (part[2] + part[3])};
    return fold(sum, kLanes);
  }

  int lane, chunks, from = 0, to = 0;
  uint8_t* slots;
};

// This lane's columns of a row of activations: 256 i + 8 lane + j.
template <int kChunks>
__device__ void hold(const float* row, int chunks, int lane, float (&x)[kChunks][8]) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    if (i >= chunks) break;
    const float4* at = reinterpret_cast<const float4*>(row + i * kChunk + 8 * lane);
    const float4 a = at[0], b = at[1];
    x[i][0] = a.x, x[i][1] = a.y, x[i][2] = a.z, x[i][3] = a.w;
    x[i][4] = b.x, x[i][5] = b.y, x[i][6] = b.z, x[i][7] = b.w;
  }
}

}  // namespace ef::cuda::single
