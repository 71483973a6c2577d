// Decoding: a block takes a row, up to eight heads of one key head, and a piece of the visible positions. The heads'
// numbers are split into two of 16 bits each, whose sum has float32's digits but the last two (bfloat16: 16 digits):
// the halves are rows h and h + 8 of the same products, so that the tensor cores' sixteen rows are full. Each warp
// streams tiles of sixteen positions through its own part of shared memory; warps, and then blocks, join in order.
#pragma once
#include "attend.cuh"

namespace ef::cuda {

constexpr int kSlotLanes = 8;  // that prepare a head

template <class Kv, class Dims>
__global__ void __launch_bounds__(kDecodeThreads) decode_kernel(const AttendParams p, const DecodePlan plan) {
  using T = typename Kv::T;
  using S = DecodeShared<Dims>;
  constexpr int kK = Dims::kK, kV = Dims::kV;
  EF_DYNAMIC_SHARED(T, shared);
  __shared__ float factor[kDecodeHeads], partial[kDecodeThreads / 32];
  __shared__ float2 of_warp[kDecodeThreads / 32][kDecodeHeads];  // largest score, sum of weights
  __shared__ bool last_to_arrive;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, warps = plan.warps, threads = warps * 32;
  T* stages = shared + warp * 2 * S::kStage;
  T* query = shared + warps * 2 * S::kStage;  // [16, kKeyStride]
  T* fresh = query + 2 * kDecodeHeads * S::kKeyStride;
  float* heads = reinterpret_cast<float*>(fresh + kK + kV);  // [kDecodeHeads + 2, kHeadStride]
  float* q_weight = heads + (kDecodeHeads + 2) * S::kHeadStride;
  float *k_weight = q_weight + kK, *cos = k_weight + kK, *sin = cos + kK / 2;

  const KvParams& kv = p.kv;
  const int row = blockIdx.z, kv_head = blockIdx.y / plan.chunks, chunk = blockIdx.y % plan.chunks;
  const int per_kv = p.heads / kv.kv_heads, count = min(plan.chunk, per_kv - chunk * plan.chunk);
  const int head0 = kv_head * per_kv + chunk * plan.chunk;

  let_later_start();
  if (!p.norm_whole)
    for (int i = tid; i < kK; i += threads) {
      if (p.q_norm) q_weight[i] = p.q_norm[i];
      if (p.k_norm) k_weight[i] = p.k_norm[i];
    }
  for (int i = tid; i < (kDecodeHeads - count) * kK; i += threads) {
    T* at = query + (count + i / kK) * S::kKeyStride + i % kK;
    at[0] = at[kDecodeHeads * S::kKeyStride] = Kv::put(0.f);
  }
  // Heads' numbers, to shared memory.
  const int pairs = p.rotary / 2;
  const auto fetch = [&](const float* from, int item, int n) {
    for (int i = tid; i < n / 4; i += threads)
      *reinterpret_cast<float4*>(heads + (item + 4 * i / kK) * S::kHeadStride + 4 * i % kK) =
          *reinterpret_cast<const float4*>(from + 4 * i);
  };
  const auto fetch_inputs = [&] {
    fetch(p.q + (int64_t(row) * p.heads + head0) * kK, 0, count * kK);
    if (plan.new_in_input) {
      fetch(p.k + (int64_t(row) * kv.kv_heads + kv_head) * kK, count, kK);
      fetch(p.v + (int64_t(row) * kv.kv_heads + kv_head) * kV, count + 1, kV);
    }
    for (int i = tid; i < pairs; i += threads) {
      cos[i] = p.cos[int64_t(row) * pairs + i];
      sin[i] = p.sin[int64_t(row) * pairs + i];
    }
  };

  if (!p.settled) wait_for_earlier();
  const int position = kv.position[row], sequence = kv.sequence[row], first = first_visible(position, p.window);
  if (!p.settled) fetch_inputs();
  const int length = piece_length(position + 1 - first, plan.splits, warps * kTile);
  const int pieces = (position - first) / length + 1, piece = blockIdx.x;
  if (piece >= pieces) {
    if (p.settled) wait_for_earlier();
    return;
  }
  const int begin = first + piece * length, end = min(begin + length, position + 1);
  const int tiles = (end - begin + kTile - 1) / kTile;
  const int own = plan.new_in_input && piece == pieces - 1 ? position : -1;
  const int32_t* table = kv.block_table + int64_t(sequence) * kv.max_blocks;
  const T* keys = reinterpret_cast<const T*>(kv.k) + kv_head * kK;
  const T* values = reinterpret_cast<const T*>(kv.v) + kv_head * kV;

  // Lanes 0 .. 15 know where a tile's positions lie; -1: zeros.
  const auto places = [&](int tile) {
    const int at = begin + tile * kTile + lane % kTile;
    return tile < tiles && at < end && at != own ? place_of(kv, table, at) : -1;
  };
  const auto load = [&](int tile, int places_of_tile, T* stage) {
    if (tile < tiles) {
#pragma unroll
      for (int i = 0; i < kTile * kK / 8 / 32; ++i) {
        const int c = i * 32 + lane, r = c / (kK / 8), d = c % (kK / 8) * 8;
        const int at = __shfl_sync(kWholeWarp, places_of_tile, r);
        copy16_async(stage + r * S::kKeyStride + d, keys + int64_t(max(at, 0)) * kv.kv_heads * kK + d, at >= 0);
      }
      stage += kTile * S::kKeyStride;
#pragma unroll
      for (int i = 0; i < kTile * kV / 8 / 32; ++i) {
        const int c = i * 32 + lane, r = c / (kV / 8), d = c % (kV / 8) * 8;
        const int at = __shfl_sync(kWholeWarp, places_of_tile, r);
        copy16_async(stage + r * S::kValueStride + d, values + int64_t(max(at, 0)) * kv.kv_heads * kV + d, at >= 0);
      }
    }
    copy_async_commit();
  };
  load(warp, places(warp), stages);
  load(warp + warps, places(warp + warps), stages + S::kStage);
  int next = places(warp + 2 * warps);

  // The heads, and the new key and value where they are this block's.
  if (p.settled) {
    wait_for_earlier();
    fetch_inputs();
  }
  const int items = count + (own >= 0 ? 2 : 0);
  const bool whole = p.norm_whole;
  float q_inverse = 0, k_inverse = 0;
  if (whole && p.q_norm)
    q_inverse = inverse_rms_of_row(p.q + int64_t(row) * p.heads * kK, p.heads * kK, p.norm_eps, partial);
  if (whole && p.k_norm && own >= 0)
    k_inverse = inverse_rms_of_row(p.k + int64_t(row) * kv.kv_heads * kK, kv.kv_heads * kK, p.norm_eps, partial);
  __syncthreads();
  for (int item = tid / kSlotLanes; item - tid / kSlotLanes < items; item += threads / kSlotLanes) {
    const bool is_q = item < count, is_k = item == count;
    const int n = item >= items ? 0 : is_q || is_k ? kK : kV, slot = tid % kSlotLanes;
    float* x = heads + min(item, items - 1) * S::kHeadStride;
    const float* weight = nullptr;
    if (is_q && p.q_norm) weight = whole ? p.q_norm + (head0 + item) * kK : q_weight;
    if (is_k && p.k_norm) weight = whole ? p.k_norm + kv_head * kK : k_weight;
    float inverse = is_q ? q_inverse : k_inverse;
    if (!whole && (p.q_norm || p.k_norm)) inverse = inverse_rms<kSlotLanes>(x, n, slot, p.norm_eps);
    finish_head<kSlotLanes>(p, weight, inverse, cos, sin, is_q || is_k ? pairs : 0, n, slot, x);
    const float range = range_factor(largest_magnitude<kSlotLanes>(x, n, slot));
    if (is_q && slot == 0) factor[item] = p.scale * kLog2E / range;
    for (int i = 2 * slot; i < n; i += 2 * kSlotLanes) {
      if (is_q) {
        const float a = x[i] * range, b = x[i + 1] * range;
        const uint32_t high = Kv::pack(a, b);
        const float2 rounded = Kv::unpack(high);
        T* at = query + item * S::kKeyStride + i;
        *reinterpret_cast<uint32_t*>(at) = high;
        *reinterpret_cast<uint32_t*>(at + kDecodeHeads * S::kKeyStride) = Kv::pack(a - rounded.x, b - rounded.y);
      } else {
        *reinterpret_cast<uint32_t*>(fresh + (is_k ? 0 : kK) + i) = Kv::pack(x[i], x[i + 1]);
      }
    }
  }
  __syncthreads();
  if (own >= 0 && chunk == 0 && tid < (kK + kV) / 8) {
    const bool is_k = tid < kK / 8;
    const int64_t at = int64_t(place_of(kv, table, own)) * kv.kv_heads + kv_head;
    T* to = is_k ? reinterpret_cast<T*>(kv.k) + at * kK : reinterpret_cast<T*>(kv.v) + at * kV - kK;
    *reinterpret_cast<uint4*>(to + 8 * tid) = *reinterpret_cast<const uint4*>(fresh + 8 * tid);
  }

  // Lanes as ldmatrix and mma want them: lane l gives row l % 8 of matrix l / 8, and holds head l / 4, columns of
  // l % 4.
  const int matrix = lane / 8, in_matrix = lane % 8, head = lane / 4, column = lane % 4 * 2;
  const T* query_at = query + (matrix % 2 * 8 + in_matrix) * S::kKeyStride + matrix / 2 * 8;
  constexpr bool kKeep = kK <= 128;  // longer queries are read again for each tile
  uint32_t kept[kKeep ? kK / 16 : 1][4];
  if constexpr (kKeep) {
#pragma unroll
    for (int i = 0; i < kK / 16; ++i) ldmatrix_x4(kept[i], query_at + i * 16);
  }
  const float to_score = head < count ? factor[head] : 0.f;
  float sums[kV / 8][4] = {}, largest = -INFINITY, sum = 0;

  for (int tile = warp, at = 0; tile < tiles; tile += warps, at ^= 1) {
    T* stage = stages + at * S::kStage;
    T* value_stage = stage + kTile * S::kKeyStride;
    copy_async_wait<1>();
    __syncwarp();
    const int base = begin + tile * kTile;
    if (own >= base && own < base + kTile) {
      for (int i = 8 * lane; i < kK + kV; i += 8 * 32) {
        T* to =
            i < kK ? stage + (own - base) * S::kKeyStride + i : value_stage + (own - base) * S::kValueStride + i - kK;
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(fresh + i);
      }
      __syncwarp();
    }
    // Two chains of products a column of eight positions: their latency counts.
    float scores[2][2][4] = {};
#pragma unroll
    for (int i = 0; i < kK / 16; ++i) {
      uint32_t a[4], b[4];
      if constexpr (!kKeep) ldmatrix_x4(a, query_at + i * 16);
      ldmatrix_x4(b, stage + (matrix / 2 * 8 + in_matrix) * S::kKeyStride + i * 16 + matrix % 2 * 8);
      Kv::mma(scores[i % 2][0], kKeep ? kept[kKeep ? i : 0] : a, {b[0], b[1]});
      Kv::mma(scores[i % 2][1], kKeep ? kept[kKeep ? i : 0] : a, {b[2], b[3]});
    }
    float s[4], most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto& even = scores[0][i / 2];
      const auto& odd = scores[1][i / 2];
      s[i] = ((even[i % 2] + odd[i % 2]) + (even[i % 2 + 2] + odd[i % 2 + 2])) * to_score;
      if (base + i / 2 * 8 + column + i % 2 >= end) s[i] = -INFINITY;
      most = fmaxf(most, s[i]);
    }
    most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 1));
    most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 2));
    most = fmaxf(most, largest);
    const float fade = power_of_two(largest - most);
    largest = most;
    sum *= fade;
    uint32_t weights[4];  // a0 and a2: rounded, of both columns; a1 and a3: what was rounded away
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float w0 = power_of_two(s[2 * i] - most), w1 = power_of_two(s[2 * i + 1] - most);
      sum += w0 + w1;
      weights[2 * i] = Kv::pack(w0, w1);
      const float2 rounded = Kv::unpack(weights[2 * i]);
      weights[2 * i + 1] = Kv::pack(w0 - rounded.x, w1 - rounded.y);
    }
#pragma unroll
    for (int i = 0; i < kV / 16; ++i) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, value_stage + (matrix % 2 * 8 + in_matrix) * S::kValueStride + i * 16 + matrix / 2 * 8);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[2 * i][j] *= fade, sums[2 * i + 1][j] *= fade;
      Kv::mma(sums[2 * i], weights, {b[0], b[1]});
      Kv::mma(sums[2 * i + 1], weights, {b[2], b[3]});
    }
    __syncwarp();
    load(tile + 2 * warps, next, stage);
    next = places(tile + 3 * warps);
  }

  // The warps' sums, in the order of warps.
  copy_async_wait<0>();
  __syncwarp();
  sum += __shfl_xor_sync(kWholeWarp, sum, 1);
  sum += __shfl_xor_sync(kWholeWarp, sum, 2);
  float* mine = reinterpret_cast<float*>(stages);
#pragma unroll
  for (int i = 0; i < kV / 8; ++i)
    *reinterpret_cast<float2*>(mine + head * S::kOutStride + i * 8 + column) =
        make_float2(sums[i][0] + sums[i][2], sums[i][1] + sums[i][3]);
  if (lane % 4 == 0) of_warp[warp][head] = make_float2(largest, sum);
  __syncthreads();

  const auto sink = [&](int h) { return p.sinks ? p.sinks[head0 + h] * kLog2E : -INFINITY; };
  const int unit = row * gridDim.y + blockIdx.y;
  const Pieces scratch = pieces_of(p, unit, int64_t(gridDim.z) * gridDim.y, plan.splits, plan.chunk);
  float* out = p.out + (int64_t(row) * p.heads + head0) * kV;
  for (int i = tid; i < count * (kV / 4); i += threads) {
    const int h = i / (kV / 4), d = i % (kV / 4) * 4;
    float most = pieces == 1 ? sink(h) : -INFINITY;
    for (int w = 0; w < warps; ++w) most = fmaxf(most, of_warp[w][h].x);
    float total = pieces == 1 && p.sinks ? power_of_two(sink(h) - most) : 0.f;
    float4 x = make_float4(0, 0, 0, 0);
    for (int w = 0; w < warps; ++w) {
      const float share = power_of_two(of_warp[w][h].x - most);
      const float4 y = *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(shared + w * 2 * S::kStage) +
                                                        h * S::kOutStride + d);
      total = fmaf(of_warp[w][h].y, share, total);
      x.x = fmaf(y.x, share, x.x), x.y = fmaf(y.y, share, x.y);
      x.z = fmaf(y.z, share, x.z), x.w = fmaf(y.w, share, x.w);
    }
    if (pieces == 1) {
      *reinterpret_cast<float4*>(out + h * kV + d) = make_float4(x.x / total, x.y / total, x.z / total, x.w / total);
    } else {
      *reinterpret_cast<float4*>(scratch.sums + (piece * plan.chunk + h) * kV + d) = x;
      if (d == 0) scratch.totals[piece * plan.chunk + h] = make_float2(most, total);
    }
  }
  if (pieces == 1) return;

  // The last block to arrive joins the pieces, in their order.
  __threadfence();
  __syncthreads();
  if (tid == 0) last_to_arrive = atomicAdd(p.arrived + unit, 1u) + 1 == unsigned(pieces);
  __syncthreads();
  if (!last_to_arrive) return;
  __threadfence();
  float* shares = reinterpret_cast<float*>(shared);  // [pieces, kDecodeHeads]
  for (int h = warp; h < count; h += warps) {
    float most = sink(h), total = 0;
    for (int i = lane; i < pieces; i += 32) most = fmaxf(most, __ldcg(&scratch.totals[i * plan.chunk + h]).x);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, mask));
    for (int i = lane; i < pieces; i += 32) {
      const float2 of_piece = __ldcg(&scratch.totals[i * plan.chunk + h]);
      const float share = power_of_two(of_piece.x - most);
      total = fmaf(of_piece.y, share, total);
      shares[i * kDecodeHeads + h] = share;
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) total += __shfl_xor_sync(kWholeWarp, total, mask);
    if (p.sinks) total += power_of_two(sink(h) - most);
    if (lane == 0) factor[h] = 1.f / total;
  }
  __syncthreads();
  for (int i = tid; i < count * (kV / 4); i += threads) {
    const int h = i / (kV / 4), d = i % (kV / 4) * 4;
    float4 x = make_float4(0, 0, 0, 0);
#pragma unroll 16
    for (int j = 0; j < pieces; ++j) {
      const float4 y = __ldcg(reinterpret_cast<const float4*>(scratch.sums + (j * plan.chunk + h) * kV + d));
      const float share = shares[j * kDecodeHeads + h];
      x.x = fmaf(y.x, share, x.x), x.y = fmaf(y.y, share, x.y);
      x.z = fmaf(y.z, share, x.z), x.w = fmaf(y.w, share, x.w);
    }
    const float norm = factor[h];
    *reinterpret_cast<float4*>(out + h * kV + d) = make_float4(x.x * norm, x.y * norm, x.z * norm, x.w * norm);
  }
  if (tid == 0) p.arrived[unit] = 0;
}

template <class Kv>
cudaError_t attend_decode(const AttendParams& p, const DecodePlan& plan, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  const dim3 grid(unsigned(plan.splits), unsigned(p.kv.kv_heads * plan.chunks), unsigned(p.kv.rows));
  with_dims(p.kv.k_dim, p.kv.v_dim, [&](auto dims) {
    error = launch(decode_kernel<Kv, decltype(dims)>,
                   {grid, dim3(unsigned(plan.warps) * 32), plan.shared, Start::kEarly}, stream, p, plan);
  });
  return error;
}

}  // namespace ef::cuda
