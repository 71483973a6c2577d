// Latent attention: one key head, whose first elements are the value, for up to sixteen query heads a block. Numbers
// are split in two as for decoding (attend_decode.cuh). Keys are long: the warps share a tile of positions, each with a
// part of the elements; scores are added up in shared memory. Pieces of a row are joined by a second kernel, whose
// blocks take a head and some elements each.
#pragma once
#include "attend.cuh"

namespace ef::cuda {

template <class Kv, class Dims>
__global__ void __launch_bounds__(kLatentThreads) latent_kernel(const AttendParams p, const LatentPlan plan) {
  using T = typename Kv::T;
  using S = LatentShared<Dims>;
  constexpr int kK = Dims::kK, kV = Dims::kV, kWarps = kLatentThreads / 32, kParts = kWarps / 2;
  constexpr int kSteps = (kK / 16 + kParts - 1) / kParts, kColumns = (kV / 16 + kWarps - 1) / kWarps;
  EF_DYNAMIC_SHARED(T, shared);
  __shared__ float factor[kLatentHeads], fades[kLatentHeads];
  __shared__ float2 totals[kLatentHeads];  // largest score, sum of weights
  __shared__ int places[2][kLatentKeys];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  T* query = shared + 2 * S::kStage;                         // [2, 16, kKeyStride]
  T* weights = query + 2 * kLatentHeads * S::kKeyStride;     // [2, 16, kWeightStride]
  T* fresh = weights + 2 * kLatentHeads * S::kWeightStride;  // [kK]
  float* scores = reinterpret_cast<float*>(fresh + kK);      // [kParts, kLatentHeads, kScoreStride]

  const KvParams& kv = p.kv;
  const int row = blockIdx.z, head0 = blockIdx.y * kLatentHeads, count = min(kLatentHeads, p.heads - head0);
  let_later_start();
  if (!p.settled) wait_for_earlier();
  const int position = kv.position[row], first = first_visible(position, p.window);
  const int length = piece_length(position + 1 - first, plan.splits, kLatentKeys);
  const int pieces = (position - first) / length + 1, piece = blockIdx.x;
  if (piece >= pieces) {
    if (p.settled) wait_for_earlier();
    return;
  }
  const int begin = first + piece * length, end = min(begin + length, position + 1);
  const int tiles = (end - begin + kLatentKeys - 1) / kLatentKeys;
  const int own = plan.new_in_input && piece == pieces - 1 ? position : -1;
  const int32_t* table = kv.block_table + int64_t(kv.sequence[row]) * kv.max_blocks;
  const T* keys = reinterpret_cast<const T*>(kv.k);

  const auto find = [&](int tile) {
    const int at = begin + tile * kLatentKeys + tid;
    return tid < kLatentKeys && at < end && at != own ? place_of(kv, table, at) : -1;
  };
  const auto load = [&](int tile, const int* at_places, T* stage) {
    if (tile < tiles) {
#pragma unroll
      for (int i = 0; i < kLatentKeys * kK / 8; i += kLatentThreads) {
        const int c = i + tid, r = c / (kK / 8), d = c % (kK / 8) * 8;
        if (kLatentKeys * kK / 8 % kLatentThreads != 0 && c >= kLatentKeys * kK / 8) break;
        const int at = at_places[r];
        copy16_async(stage + r * S::kKeyStride + d, keys + int64_t(max(at, 0)) * kK + d, at >= 0);
      }
    }
    copy_async_commit();
  };
  if (tid < kLatentKeys) places[0][tid] = find(0), places[1][tid] = find(1);
  __syncthreads();
  load(0, places[0], shared);

  // Queries, two warps' heads after the other's; then the new key.
  if (p.settled) wait_for_earlier();
  for (int h = warp; h < kLatentHeads; h += kWarps) {
    const float* q = p.q + (int64_t(row) * p.heads + head0 + min(h, count - 1)) * kK;
    float2 x[(kK + 63) / 64];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < (kK + 63) / 64; ++i) {
      const int d = 64 * i + 2 * lane;
      x[i] = h < count && d < kK ? *reinterpret_cast<const float2*>(q + d) : make_float2(0, 0);
      largest = fmaxf(largest, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, mask));
    const float range = range_factor(largest);
    if (lane == 0) factor[h] = p.scale * kLog2E / range;
    T* to = query + (h / 8 * 16 + h % 8) * S::kKeyStride;
#pragma unroll
    for (int i = 0; i < (kK + 63) / 64; ++i) {
      const int d = 64 * i + 2 * lane;
      if (d >= kK) continue;
      const float a = x[i].x * range, b = x[i].y * range;
      const uint32_t high = Kv::pack(a, b);
      const float2 rounded = Kv::unpack(high);
      *reinterpret_cast<uint32_t*>(to + d) = high;
      *reinterpret_cast<uint32_t*>(to + 8 * S::kKeyStride + d) = Kv::pack(a - rounded.x, b - rounded.y);
    }
  }
  if (own >= 0)
    for (int d = tid; d < kK; d += kLatentThreads) fresh[d] = Kv::put(p.k[int64_t(row) * kK + d]);
  __syncthreads();
  if (own >= 0 && blockIdx.y == 0 && tid < kK / 8)
    *reinterpret_cast<uint4*>(reinterpret_cast<T*>(kv.k) + int64_t(place_of(kv, table, own)) * kK + 8 * tid) =
        *reinterpret_cast<const uint4*>(fresh + 8 * tid);

  // Lanes as in attend_decode.cuh. For scores a warp has eight heads and every kParts-th sixteen elements; for values
  // all heads and every kWarps-th sixteen.
  const int matrix = lane / 8, in_matrix = lane % 8, column = lane % 4 * 2, eight = warp % 2, part = warp / 2;
  uint32_t a[kSteps][4];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int step = part + i * kParts;
    if (step < kK / 16)
      ldmatrix_x4(a[i], query + (eight * 16 + matrix % 2 * 8 + in_matrix) * S::kKeyStride + step * 16 + matrix / 2 * 8);
  }
  float sums[kColumns][2][2][4] = {};  // of elements: sixteen by sixteen, eight heads, eight elements
  float largest = -INFINITY, sum = 0;  // of head tid / 16

  for (int tile = 0, at = 0; tile < tiles; ++tile, at ^= 1) {
    T* stage = shared + at * S::kStage;
    copy_async_wait<0>();
    __syncthreads();  // this tile is there, and the one before has been used
    load(tile + 1, places[at ^ 1], shared + (at ^ 1) * S::kStage);
    const int later = find(tile + 2), base = begin + tile * kLatentKeys;
    if (own >= base && own < base + kLatentKeys) {
      if (tid < kK / 8)
        *reinterpret_cast<uint4*>(stage + (own - base) * S::kKeyStride + 8 * tid) =
            *reinterpret_cast<const uint4*>(fresh + 8 * tid);
      __syncthreads();
    }

    float s[kLatentKeys / 8][4] = {};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int step = part + i * kParts;
      if (step >= kK / 16) continue;
#pragma unroll
      for (int j = 0; j < kLatentKeys / 16; ++j) {
        uint32_t b[4];
        ldmatrix_x4(b, stage + (j * 16 + matrix / 2 * 8 + in_matrix) * S::kKeyStride + step * 16 + matrix % 2 * 8);
        Kv::mma(s[2 * j], a[i], {b[0], b[1]});
        Kv::mma(s[2 * j + 1], a[i], {b[2], b[3]});
      }
    }
    float* mine = scores + (part * kLatentHeads + eight * 8 + lane / 4) * S::kScoreStride + column;
#pragma unroll
    for (int j = 0; j < kLatentKeys / 8; ++j)
      *reinterpret_cast<float2*>(mine + 8 * j) = make_float2(s[j][0] + s[j][2], s[j][1] + s[j][3]);
    __syncthreads();

    {  // Sixteen threads a head, two positions each.
      const int h = tid / 16, k = tid % 16 * 2;
      float2 score = make_float2(0, 0);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const float2 of_part = *reinterpret_cast<const float2*>(scores + (i * kLatentHeads + h) * S::kScoreStride + k);
        score.x += of_part.x, score.y += of_part.y;
      }
      score.x = base + k < end ? score.x * factor[h] : -INFINITY;
      score.y = base + k + 1 < end ? score.y * factor[h] : -INFINITY;
      float most = fmaxf(score.x, score.y);
#pragma unroll
      for (int mask = 8; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, mask));
      most = fmaxf(most, largest);
      const float fade = power_of_two(largest - most);
      largest = most;
      const float w0 = power_of_two(score.x - most), w1 = power_of_two(score.y - most);
      sum = fmaf(sum, fade, w0 + w1);
      if (k == 0) fades[h] = fade;
      const uint32_t high = Kv::pack(w0, w1);
      const float2 rounded = Kv::unpack(high);
      T* to = weights + (h / 8 * 16 + h % 8) * S::kWeightStride + k;
      *reinterpret_cast<uint32_t*>(to) = high;
      *reinterpret_cast<uint32_t*>(to + 8 * S::kWeightStride) = Kv::pack(w0 - rounded.x, w1 - rounded.y);
    }
    __syncthreads();

    const float fade[2] = {fades[lane / 4], fades[8 + lane / 4]};
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int e = 0; e < 8; ++e) sums[i][m][e / 4][e % 4] *= fade[m];
#pragma unroll
    for (int k = 0; k < kLatentKeys / 16; ++k) {
      uint32_t w[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m)
        ldmatrix_x4(w[m], weights + (m * 16 + matrix % 2 * 8 + in_matrix) * S::kWeightStride + k * 16 + matrix / 2 * 8);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int sixteen = warp + i * kWarps;
        if (sixteen >= kV / 16) continue;
        uint32_t b[4];
        ldmatrix_x4_trans(
            b, stage + (k * 16 + matrix % 2 * 8 + in_matrix) * S::kKeyStride + sixteen * 16 + matrix / 2 * 8);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          Kv::mma(sums[i][m][0], w[m], {b[0], b[1]});
          Kv::mma(sums[i][m][1], w[m], {b[2], b[3]});
        }
      }
    }
    if (tid < kLatentKeys) places[at][tid] = later;
  }

  copy_async_wait<0>();
#pragma unroll
  for (int mask = 8; mask > 0; mask /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, mask);
  if (tid % 16 == 0) totals[tid / 16] = make_float2(largest, sum);
  __syncthreads();
  const int64_t unit = int64_t(row) * gridDim.y + blockIdx.y;
  const Pieces to = pieces_of(p, unit, int64_t(gridDim.z) * gridDim.y, plan.splits, kLatentHeads);
  if (pieces > 1 && tid < count) to.totals[piece * kLatentHeads + tid] = totals[tid];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const int h = m * 8 + lane / 4;
    if (h >= count) continue;
    float share = 1.f;
    float* out = to.sums + (piece * kLatentHeads + h) * kV;
    if (pieces == 1) {
      out = p.out + (int64_t(row) * p.heads + head0 + h) * kV;
      const float sink = p.sinks ? p.sinks[head0 + h] * kLog2E : -INFINITY, most = fmaxf(totals[h].x, sink);
      share = power_of_two(totals[h].x - most);
      share /= fmaf(totals[h].y, share, power_of_two(sink - most));
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int sixteen = warp + i * kWarps;
      if (sixteen >= kV / 16) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const auto& x = sums[i][m][j];
        *reinterpret_cast<float2*>(out + sixteen * 16 + j * 8 + column) =
            make_float2((x[0] + x[2]) * share, (x[1] + x[3]) * share);
      }
    }
  }
}

// A block: a row, a head, and kJoined elements. Four threads an element quartet, each with every fourth piece.
template <class Dims>
__global__ void __launch_bounds__(128) latent_join_kernel(const AttendParams p, const LatentPlan plan) {
  constexpr int kV = Dims::kV, kJoined = kV < 128 ? kV : 128, kQuartets = kJoined / 4;
  __shared__ float4 sums[4][kQuartets];
  __shared__ float shares[kLatentPieces];
  let_later_start();
  wait_for_earlier();
  const int row = blockIdx.z, head = blockIdx.x, quartet = threadIdx.x % kQuartets, group = threadIdx.x / kQuartets,
            lane = threadIdx.x % 32;
  const int position = p.kv.position[row], seen = position + 1 - first_visible(position, p.window);
  const int length = piece_length(seen, plan.splits, kLatentKeys), pieces = (seen - 1) / length + 1;
  if (pieces == 1) return;  // it has its result
  const int chunk = head / kLatentHeads, h = head % kLatentHeads;
  const Pieces from =
      pieces_of(p, int64_t(row) * plan.chunks + chunk, int64_t(gridDim.z) * plan.chunks, plan.splits, kLatentHeads);
  const float sink = p.sinks ? p.sinks[head] * kLog2E : -INFINITY;
  float most = sink, total = 0;
  for (int i = lane; i < pieces; i += 32) most = fmaxf(most, from.totals[i * kLatentHeads + h].x);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, mask));
  for (int i = lane; i < pieces; i += 32) {
    const float2 of_piece = from.totals[i * kLatentHeads + h];
    const float share = power_of_two(of_piece.x - most);
    total = fmaf(of_piece.y, share, total);
    if (threadIdx.x < 32) shares[i] = share;
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) total += __shfl_xor_sync(kWholeWarp, total, mask);
  total += power_of_two(sink - most);
  __syncthreads();
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int i = group; i < pieces; i += 4) {
    const float4 x =
        *reinterpret_cast<const float4*>(from.sums + (i * kLatentHeads + h) * kV + blockIdx.y * kJoined + quartet * 4);
    sum.x = fmaf(x.x, shares[i], sum.x), sum.y = fmaf(x.y, shares[i], sum.y);
    sum.z = fmaf(x.z, shares[i], sum.z), sum.w = fmaf(x.w, shares[i], sum.w);
  }
  sums[group][quartet] = sum;
  __syncthreads();
  if (group != 0) return;
  for (int i = 1; i < 4; ++i) {
    const float4 x = sums[i][quartet];
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
  }
  *reinterpret_cast<float4*>(p.out + (int64_t(row) * p.heads + head) * kV + blockIdx.y * kJoined + quartet * 4) =
      make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total);
}

template <class Kv>
cudaError_t attend_latent(const AttendParams& p, const LatentPlan& plan, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  const unsigned rows = unsigned(p.kv.rows);
  with_latent_dims(p.kv.k_dim, p.kv.v_dim, [&](auto dims) {
    using Dims = decltype(dims);
    constexpr unsigned kJoined = Dims::kV < 128 ? Dims::kV : 128;
    error =
        launch(latent_kernel<Kv, Dims>,
               {dim3(unsigned(plan.splits), unsigned(plan.chunks), rows), kLatentThreads, plan.shared, Start::kEarly},
               stream, p, plan);
    if (error == cudaSuccess && plan.splits > 1)
      error =
          launch(latent_join_kernel<Dims>,
                 {dim3(unsigned(p.heads), Dims::kV / kJoined, rows), dim3(kJoined), 0, Start::kEarly}, stream, p, plan);
  });
  return error;
}

}  // namespace ef::cuda
