// Many rows: a block takes 128 rows of queries, tokens times the heads of one key head, sixteen to a warp, and passes
// over the keys in tiles (FlashAttention-2, arXiv:2307.08691). Tokens of a block fall into runs of one sequence each;
// the passes of its runs follow one another, and rows of other runs see nothing of them. Where there are few tokens and
// many keys, the passes are split among blocks, and a second kernel joins what they leave.
#pragma once
#include "attend.cuh"

namespace ef::cuda {

// What the blocks of some tokens and some heads of a key head leave where their keys are split.
__device__ inline Pieces prefill_pieces(const AttendParams& p, const PrefillPlan& plan, int64_t tile, int y, int ys) {
  const int64_t tiles = (p.kv.rows + plan.tokens - 1) / plan.tokens;
  return pieces_of(p, tile * ys + y, tiles * ys, plan.splits, kPrefillRows);
}

template <class Kv, class Dims>
__global__ void __launch_bounds__(kPrefillThreads) prefill_kernel(const AttendParams p, const PrefillPlan plan) {
  using T = typename Kv::T;
  using S = PrefillShared<Dims>;
  constexpr int kK = Dims::kK, kV = Dims::kV, kKeys = S::kKeys;
  EF_DYNAMIC_SHARED(T, shared);
  __shared__ int positions[kPrefillRows], run_of[kPrefillRows];  // of tokens
  __shared__ int run_begin[kPrefillRows], run_end[kPrefillRows], run_sequence[kPrefillRows];
  __shared__ unsigned starts_of_warp[kPrefillRows / 32];
  __shared__ int places[2][kKeys];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const KvParams& kv = p.kv;
  const int kv_head = blockIdx.y / plan.chunks, chunk = blockIdx.y % plan.chunks, per_kv = p.heads / kv.kv_heads;
  const int head0 = kv_head * per_kv + chunk * plan.chunk, heads = min(plan.chunk, per_kv - chunk * plan.chunk);
  // The last tokens see the most: they begin first.
  const int64_t token0 = int64_t(gridDim.x - 1 - blockIdx.x) * plan.tokens;
  const int tokens = int(min(int64_t(plan.tokens), kv.rows - token0));
  let_later_start();
  wait_for_earlier();

  // Runs, and the positions that each needs.
  const bool is_token = tid < tokens;
  const int sequence = is_token ? kv.sequence[token0 + tid] : -1, position = is_token ? kv.position[token0 + tid] : -1;
  const bool starts = is_token && (tid == 0 || kv.sequence[token0 + tid - 1] != sequence);
  if (tid < kPrefillRows) {
    positions[tid] = position, run_begin[tid] = 0x7fffffff, run_end[tid] = 0;
    const unsigned starting = __ballot_sync(kWholeWarp, starts);
    if (lane == 0) starts_of_warp[warp] = starting;
  }
  __syncthreads();
  if (is_token) {
    int run = __popc(starts_of_warp[warp] & (2u << lane) - 1) - 1;
    for (int i = 0; i < warp; ++i) run += __popc(starts_of_warp[i]);
    run_of[tid] = run;
    if (starts) run_sequence[run] = sequence;
    atomicMin(&run_begin[run], first_visible(position, p.window));
    atomicMax(&run_end[run], position + 1);
  }
  __syncthreads();
  const int runs = run_of[tokens - 1] + 1;

  const auto tiles_of = [&](int run) { return (run_end[run] - run_begin[run] + kKeys - 1) / kKeys; };
  // Tiles of keys, one run's after the other's; this block's are an equal part of them.
  struct Tile {
    int run, begin;
  };
  int all_tiles = 0;
  for (int i = 0; i < runs; ++i) all_tiles += tiles_of(i);
  int skipped = int(int64_t(all_tiles) * blockIdx.z / plan.splits);
  const int tiles = int(int64_t(all_tiles) * (blockIdx.z + 1) / plan.splits) - skipped;
  const auto after = [&](Tile t) -> Tile {
    if (t.begin + kKeys < run_end[t.run]) return {t.run, t.begin + kKeys};
    return {t.run + 1, t.run + 1 < runs ? run_begin[t.run + 1] : 0};
  };
  const auto find = [&](Tile t) {
    const int at = t.begin + tid;
    if (t.run >= runs || tid >= kKeys || at >= run_end[t.run]) return -1;
    return place_of(kv, kv.block_table + int64_t(run_sequence[t.run]) * kv.max_blocks, at);
  };
  const T* keys = reinterpret_cast<const T*>(kv.k) + kv_head * kK;
  const T* values = reinterpret_cast<const T*>(kv.v) + kv_head * kV;
  const auto load = [&](Tile t, const int* at_places, T* stage) {
    if (t.run < runs) {
#pragma unroll
      for (int i = 0; i < kKeys * kK / 8; i += kPrefillThreads) {
        const int c = i + tid, r = c / (kK / 8), d = c % (kK / 8) * 8;
        if (kKeys * kK / 8 % kPrefillThreads != 0 && c >= kKeys * kK / 8) break;
        const int at = at_places[r];
        copy16_async(stage + r * S::kKeyStride + d, keys + int64_t(max(at, 0)) * kv.kv_heads * kK + d, at >= 0);
      }
      stage += kKeys * S::kKeyStride;
#pragma unroll
      for (int i = 0; i < kKeys * kV / 8; i += kPrefillThreads) {
        const int c = i + tid, r = c / (kV / 8), d = c % (kV / 8) * 8;
        if (kKeys * kV / 8 % kPrefillThreads != 0 && c >= kKeys * kV / 8) break;
        const int at = at_places[r];
        copy16_async(stage + r * S::kValueStride + d, values + int64_t(max(at, 0)) * kv.kv_heads * kV + d, at >= 0);
      }
    }
    copy_async_commit();
  };

  Tile tile{0, run_begin[0]};
  for (; tile.run + 1 < runs && skipped >= tiles_of(tile.run); tile = {tile.run + 1, run_begin[tile.run + 1]})
    skipped -= tiles_of(tile.run);
  tile.begin += skipped * kKeys;
  Tile next = after(tile);
  if (tid < kKeys) places[0][tid] = find(tile), places[1][tid] = find(next);
  // Queries, as attend_heads() leaves them. They lie where the second stage does until they are in registers.
  T* queries = shared + S::kQueries;
  for (int c = tid; c < kPrefillRows * kK / 8; c += kPrefillThreads) {
    const int r = c / (kK / 8), d = c % (kK / 8) * 8, token = r / plan.chunk, head = r % plan.chunk;
    const bool valid = token < tokens && head < heads;
    const float* from = p.q + ((token0 + (valid ? token : 0)) * p.heads + head0 + (valid ? head : 0)) * kK;
    copy16_async(queries + r * S::kKeyStride + d, reinterpret_cast<const T*>(from) + d, valid);
  }
  __syncthreads();
  load(tile, places[0], shared);
  copy_async_wait<0>();
  __syncthreads();

  // Lanes as ldmatrix and mma want them: lane l gives row l % 8 of matrix l / 8; it holds rows l / 4 and l / 4 + 8 of
  // the warp's sixteen, columns of l % 4.
  const int matrix = lane / 8, in_matrix = lane % 8, column = lane % 4 * 2;
  const T* query_at = queries + (warp * 16 + matrix % 2 * 8 + in_matrix) * S::kKeyStride + matrix / 2 * 8;
  uint32_t kept[S::kKeep ? kK / 16 : 1][4];
  if constexpr (S::kKeep) {
#pragma unroll
    for (int i = 0; i < kK / 16; ++i) ldmatrix_x4(kept[i], query_at + i * 16);
  }
  int row_run[2], row_position[2];
  float to_score[2], largest[2] = {-INFINITY, -INFINITY}, sum[2] = {}, sums[kV / 8][4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = warp * 16 + lane / 4 + 8 * i, token = r / plan.chunk, head = r % plan.chunk;
    const bool valid = token < tokens && head < heads;
    row_run[i] = valid ? run_of[token] : -1;
    row_position[i] = valid ? positions[token] : -1;
    to_score[i] = valid ? p.q[((token0 + token) * p.heads + head0 + head) * kK + kK / 2] * p.scale * kLog2E : 1.f;
  }

  for (int i = 0, at = 0; i < tiles; ++i, at ^= 1) {
    copy_async_wait<0>();
    __syncthreads();  // this tile is there, and the one before has been used
    if (i + 1 < tiles) load(next, places[at ^ 1], shared + (at ^ 1) * S::kStage);
    const Tile later = next.run < runs ? after(next) : next;
    const int later_place = find(later);

    // What each of the lane's two rows sees of the tile: positions from .. to.
    int from[2], to[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool in_run = row_run[i] == tile.run;
      from[i] = in_run ? first_visible(row_position[i], p.window) : 0x7fffffff;
      to[i] = in_run ? row_position[i] : -1;
    }
    const int tile_end = tile.begin + kKeys - 1;
    const bool sees = (to[0] >= tile.begin && from[0] <= tile_end) || (to[1] >= tile.begin && from[1] <= tile_end);
    const bool all = max(from[0], from[1]) <= tile.begin && min(to[0], to[1]) >= tile_end;
    if (__any_sync(kWholeWarp, sees)) {
      const T* key_stage = shared + at * S::kStage;
      const T* value_stage = key_stage + kKeys * S::kKeyStride;
      float s[kKeys / 8][4] = {};
#pragma unroll
      for (int i = 0; i < kK / 16; ++i) {
        uint32_t a[4];
        if constexpr (!S::kKeep) ldmatrix_x4(a, query_at + i * 16);
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j) {
          uint32_t b[4];
          ldmatrix_x4(b, key_stage + (j * 16 + matrix / 2 * 8 + in_matrix) * S::kKeyStride + i * 16 + matrix % 2 * 8);
          Kv::mma(s[2 * j], S::kKeep ? kept[S::kKeep ? i : 0] : a, {b[0], b[1]});
          Kv::mma(s[2 * j + 1], S::kKeep ? kept[S::kKeep ? i : 0] : a, {b[2], b[3]});
        }
      }
      if (!__all_sync(kWholeWarp, all)) {
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int key = tile.begin + j * 8 + column + e % 2;
            if (key < from[e / 2] || key > to[e / 2]) s[j][e] = -INFINITY;
          }
      }
      float fade[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float most = largest[i];
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) most = fmaxf(most, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
        most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 1));
        most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, 2));
        const float base = most == -INFINITY ? 0.f : most * to_score[i];  // rows that have seen nothing yet
        fade[i] = power_of_two(fmaf(largest[i], to_score[i], -base));
        largest[i] = most;
        float of_tile = 0;
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
          for (int e = 2 * i; e < 2 * i + 2; ++e) {
            s[j][e] = power_of_two(fmaf(s[j][e], to_score[i], -base));
            of_tile += s[j][e];
          }
        sum[i] = fmaf(sum[i], fade[i], of_tile);
      }
#pragma unroll
      for (int j = 0; j < kV / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[j][e] *= fade[e / 2];
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) {
        const uint32_t weights[4] = {Kv::pack(s[2 * i][0], s[2 * i][1]), Kv::pack(s[2 * i][2], s[2 * i][3]),
                                     Kv::pack(s[2 * i + 1][0], s[2 * i + 1][1]),
                                     Kv::pack(s[2 * i + 1][2], s[2 * i + 1][3])};
#pragma unroll
        for (int j = 0; j < kV / 16; ++j) {
          uint32_t b[4];
          ldmatrix_x4_trans(
              b, value_stage + (i * 16 + matrix % 2 * 8 + in_matrix) * S::kValueStride + j * 16 + matrix / 2 * 8);
          Kv::mma(sums[2 * j], weights, {b[0], b[1]});
          Kv::mma(sums[2 * j + 1], weights, {b[2], b[3]});
        }
      }
    }
    if (tid < kKeys) places[at][tid] = later_place;  // last, so that nobody has waited for it
    tile = next, next = later;
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] += __shfl_xor_sync(kWholeWarp, sum[i], 1);
    sum[i] += __shfl_xor_sync(kWholeWarp, sum[i], 2);
    const int r = warp * 16 + lane / 4 + 8 * i, token = r / plan.chunk, head = head0 + r % plan.chunk;
    if (row_run[i] < 0) continue;
    float share = 1.f, base = largest[i] * to_score[i];
    if (plan.splits > 1) {
      const Pieces to = prefill_pieces(p, plan, token0 / plan.tokens, blockIdx.y, gridDim.y);
      const int at = blockIdx.z * kPrefillRows + r;
#pragma unroll
      for (int j = 0; j < kV / 8; ++j)
        *reinterpret_cast<float2*>(to.sums + at * kV + j * 8 + column) =
            make_float2(sums[j][2 * i], sums[j][2 * i + 1]);
      if (lane % 4 == 0) to.totals[at] = make_float2(base, sum[i]);
      continue;
    }
    if (p.sinks) {
      const float sink = p.sinks[head] * kLog2E, most = fmaxf(base, sink);
      share = power_of_two(base - most);
      sum[i] = fmaf(sum[i], share, power_of_two(sink - most));
    }
    const float norm = share / sum[i];
    float* out = p.out + ((token0 + token) * p.heads + head) * kV;
#pragma unroll
    for (int j = 0; j < kV / 8; ++j)
      *reinterpret_cast<float2*>(out + j * 8 + column) = make_float2(sums[j][2 * i] * norm, sums[j][2 * i + 1] * norm);
  }
}

// A thread: four elements of a row's head.
template <int kV>
__global__ void __launch_bounds__(kPrefillThreads) prefill_join_kernel(const AttendParams p, const PrefillPlan plan) {
  let_later_start();
  wait_for_earlier();
  const int64_t i = int64_t(blockIdx.x) * kPrefillThreads + threadIdx.x, row = i / (kV / 4) / p.heads;
  if (row >= p.kv.rows) return;
  const int head = int(i / (kV / 4) % p.heads), d = int(i % (kV / 4)) * 4, per_kv = p.heads / p.kv.kv_heads;
  const int y = head / per_kv * plan.chunks + head % per_kv / plan.chunk;
  const Pieces from = prefill_pieces(p, plan, row / plan.tokens, y, p.kv.kv_heads * plan.chunks);
  const int r = int(row % plan.tokens) * plan.chunk + head % per_kv % plan.chunk;
  const float sink = p.sinks ? p.sinks[head] * kLog2E : -INFINITY;
  float most = sink;
  for (int j = 0; j < plan.splits; ++j) most = fmaxf(most, from.totals[j * kPrefillRows + r].x);
  float total = power_of_two(sink - most);
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
  for (int j = 0; j < plan.splits; ++j) {
    const float2 of_piece = from.totals[j * kPrefillRows + r];
    const float4 x = *reinterpret_cast<const float4*>(from.sums + (j * kPrefillRows + r) * kV + d);
    const float share = power_of_two(of_piece.x - most);
    total = fmaf(of_piece.y, share, total);
    sum.x = fmaf(x.x, share, sum.x), sum.y = fmaf(x.y, share, sum.y);
    sum.z = fmaf(x.z, share, sum.z), sum.w = fmaf(x.w, share, sum.w);
  }
  *reinterpret_cast<float4*>(p.out + i * 4) = make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total);
}

template <class Kv>
cudaError_t attend_prefill(const AttendParams& p, const PrefillPlan& plan, cudaStream_t stream) {
  cudaError_t error = cudaErrorInvalidValue;
  const dim3 grid(unsigned((p.kv.rows + plan.tokens - 1) / plan.tokens), unsigned(p.kv.kv_heads * plan.chunks),
                  unsigned(plan.splits));
  with_dims(p.kv.k_dim, p.kv.v_dim, [&](auto dims) {
    using Dims = decltype(dims);
    error = launch(prefill_kernel<Kv, Dims>, {grid, kPrefillThreads, plan.shared, Start::kEarly}, stream, p, plan);
    if (error != cudaSuccess || plan.splits == 1) return;
    const int64_t quartets = p.kv.rows * p.heads * (Dims::kV / 4);
    const dim3 blocks(unsigned((quartets + kPrefillThreads - 1) / kPrefillThreads));
    error = launch(prefill_join_kernel<Dims::kV>, {blocks, kPrefillThreads, 0, Start::kEarly}, stream, p, plan);
  });
  return error;
}

}  // namespace ef::cuda
