// Attention of the row in layers.cu: a block takes one query head, or where the context is long several of a key head,
// and a piece of the positions. Lanes of a warp share positions by sixteen bytes of a head. The first keys and values
// are read before the projections are there.
#pragma once
#include "layers.cuh"

namespace ef::cuda::stay {

/// How a position's visible part is cut; the same in all layers, so that each number of the exchange is always used.
struct Pieces {
  int heads = 1;  ///< of a unit
  int count = 1, length = 0;
};
__device__ inline Pieces pieces_for(const Plan& plan, int positions) {
  Pieces c;
  c.count = (positions + kPiece - 1) / kPiece;
  if (c.count > plan.short_pieces) {
    c.heads = plan.long_heads;
    c.count = min(c.count, plan.long_pieces);
  }
  c.length = (positions + c.count - 1) / c.count;
  return c;
}

constexpr int kAtOnce = 8;  // positions that a lane takes at once, of one head

/// Where a thread's first keys lie, by 16 bytes from those of the layer; all ones where there is none.
struct Places {
  uint32_t at[kAtOnce];
};

struct AttendSite {
  __device__ AttendSite(const Job& job, const LayerOf& layer) : job(job), layer(layer) {}
  const Job& job;
  const LayerOf& layer;
  float* scratch = nullptr;  ///< the exchange
  float* space = nullptr;    ///< shared memory: attend_floats()
  const float *cos = nullptr, *sin = nullptr;
  int position = 0, sequence = 0;
  Places places;        ///< of the block's first unit
  bool placed = false;  ///< they are this layer's too
  Pieces pieces;
  unsigned tag = 0;
};

__host__ __device__ inline int attend_floats(int heads, int head_dim) {
  return (heads + 2) * head_dim + head_dim + kWarps * heads * (head_dim + 2);
}

// A head by one warp: norm, clip, rotation.
__device__ inline void finish_head(const LayersParams& p, float* x, const float (&weight)[kMostHeadDim / kLanes],
                                   bool normed, bool rotated, const float* cos, const float* sin, int lane) {
  const int n = p.head_dim;
  float inverse = 1.f;
  if (normed) {
    float sum = 0;
#pragma unroll 1
    for (int i = lane; i < n; i += kLanes) sum = fmaf(x[i], x[i], sum);
    inverse = 1.f / sqrtf(warp_sum(sum) / float(n) + p.head_eps);
  }
#pragma unroll
  for (int j = 0; j < kMostHeadDim / kLanes; ++j) {
    const int i = lane + j * kLanes;
    if (i >= n) break;
    float v = x[i];
    if (normed) v = v * inverse * weight[j];
    // Written so that a NaN stays.
    if (p.clip > 0) v = v < -p.clip ? -p.clip : v > p.clip ? p.clip : v;
    x[i] = v;
  }
  __syncwarp();
  const int pairs = rotated ? p.rotary / 2 : 0;
#pragma unroll 1
  for (int i = lane; i < pairs; i += kLanes) {
    float& first = p.interleaved ? x[2 * i] : x[i];
    float& second = p.interleaved ? x[2 * i + 1] : x[i + pairs];
    const float u = first, v = second;
    first = u * cos[i] - v * sin[i];
    second = v * cos[i] + u * sin[i];
  }
  __syncwarp();
}

template <class Kv>
__device__ void unpack8(const uint4& v, float (&out)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = Kv::unpack(words[i]);
    out[2 * i] = two.x, out[2 * i + 1] = two.y;
  }
}

// What is known of a head's scores and values, in powers of two.
template <int kHeads>
struct Running {
  float most[kHeads], total[kHeads], sums[kHeads][kUnit];
};
template <int kHeads>
__device__ void join(Running<kHeads>& a, int mask) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float other = __shfl_xor_sync(kWholeWarp, a.most[h], mask), most = fmaxf(a.most[h], other);
    const float mine = a.most[h] == most ? 1.f : power_of_two(a.most[h] - most);
    const float its = other == most ? 1.f : power_of_two(other - most);
    const float total = __shfl_xor_sync(kWholeWarp, a.total[h], mask);
    a.total[h] = a.total[h] * mine + total * its;
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const float sum = __shfl_xor_sync(kWholeWarp, a.sums[h][j], mask);
      a.sums[h][j] = a.sums[h][j] * mine + sum * its;
    }
    a.most[h] = most;
  }
}

// when_ready(): once the block has the projections.
template <class Kv, int kHeads, class F>
__device__ void attend_unit(const AttendSite& site, int unit, F when_ready) {
  using T = typename Kv::T;
  constexpr int kBatch = kHeads == 1 ? kAtOnce : 4;
  constexpr float kNone = -3e38f;  // no score: its tag does no harm
  const LayersParams& p = site.job.p;
  const LayerOf& l = site.layer;
  const Plan& plan = site.job.plan;
  const int tid = int(threadIdx.x), lane = tid % kLanes, warp = tid / kLanes, dim = p.head_dim;
  const int head0 = unit / site.pieces.count * kHeads, piece = unit % site.pieces.count;
  const int kv_head = head0 / (p.heads / p.kv_heads);
  float* heads = site.space;                                    // [kHeads + 2, dim]
  T* fresh = reinterpret_cast<T*>(heads + (kHeads + 2) * dim);  // [2, dim]
  float* parts = heads + (kHeads + 3) * dim;                    // [kWarps, kHeads, dim], then [kWarps, kHeads, 2]
  float* ends = parts + kWarps * kHeads * dim;

  // Lanes of a position: a power of two of them, of which `on` have numbers.
  int lanes = 1;
#pragma unroll 1
  while (lanes * kUnit < dim) lanes *= 2;
  const int groups = kWarps * (kLanes / lanes), group = tid / lanes, d = tid % lanes * kUnit;
  const bool on = d < dim;
  const int first = first_visible(site.position, l.window);
  const int begin = max(first, piece * site.pieces.length),
            end = min((piece + 1) * site.pieces.length, site.position + 1);
  const int own = begin <= site.position && site.position < end ? site.position : -1;
  const int32_t* table = l.block_table + int64_t(site.sequence) * l.max_blocks;
  const T* keys = reinterpret_cast<const T*>(l.keys) + kv_head * dim + d;
  const T* values = reinterpret_cast<const T*>(l.values) + kv_head * dim + d;
  const auto block_of = [&](int at) { return table[at >> plan.block_shift]; };
  const auto place = [&](int block, int at) {
    return int64_t((block << plan.block_shift) + (at & (p.block_tokens - 1))) * p.kv_heads * dim;
  };
  uint4 k[kBatch], v[kBatch];
  const auto load = [&](int from) {
    int block[kBatch];  // first all of these, so that none is waited for alone
#pragma unroll
    for (int i = 0; i < kBatch; ++i) block[i] = block_of(min(from + i * groups, site.position));
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = from + i * groups;
      k[i] = v[i] = make_uint4(0, 0, 0, 0);
      const int64_t where = place(block[i], at);
      if (on && at < end && at != own) {
        k[i] = __ldcg(reinterpret_cast<const uint4*>(keys + where));
        v[i] = __ldcg(reinterpret_cast<const uint4*>(values + where));
      }
    }
  };
  if (kHeads == 1 && site.placed && unit == int(blockIdx.x)) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t at = site.places.at[i];
      k[i] = v[i] = make_uint4(0, 0, 0, 0);
      if (at == ~0u) continue;
      k[i] = __ldcg(reinterpret_cast<const uint4*>(l.keys) + at);
      v[i] = __ldcg(reinterpret_cast<const uint4*>(l.values) + at);
    }
  } else {
    load(begin + group);
  }

  // Heads, and the new key and value where they are this block's: a warp each.
  const int items = kHeads + (own >= 0 ? 2 : 0);
  float weight[kMostHeadDim / kLanes] = {};
  const float* norm = warp < kHeads ? l.q_norm : warp == kHeads ? l.k_norm : nullptr;
  if (norm && warp < items)
#pragma unroll
    for (int j = 0; j < kMostHeadDim / kLanes; ++j)
      if (lane + j * kLanes < dim) weight[j] = __ldg(norm + lane + j * kLanes);
  __syncthreads();  // the shared memory is free
  const float* qkv = site.scratch + plan.qkv;
#pragma unroll 1
  for (int i = 4 * tid; i < items * dim; i += 4 * kThreads) {
    const int item = i / dim;
    const int at =
        item < kHeads ? head0 * dim + i : (p.heads + (item - kHeads) * p.kv_heads + kv_head) * dim + i - item * dim;
    *reinterpret_cast<float4*>(heads + i) = get4(qkv + at, site.tag);
  }
  when_ready();
  __syncthreads();
  if (warp < items)
    finish_head(p, heads + warp * dim, weight, norm != nullptr, warp <= kHeads, site.cos, site.sin, lane);
  if (warp >= kHeads && warp < items) {
#pragma unroll 1
    for (int i = 2 * lane; i < dim; i += 2 * kLanes)
      *reinterpret_cast<uint32_t*>(fresh + (warp - kHeads) * dim + i) =
          Kv::pack(heads[warp * dim + i], heads[warp * dim + i + 1]);
    __syncwarp();
    // One of the blocks that have the same new key stores it.
    if (head0 % (p.heads / p.kv_heads) == 0) {
      T* to = reinterpret_cast<T*>(warp == kHeads ? l.keys : l.values) + kv_head * dim + place(block_of(own), own);
#pragma unroll 1
      for (int i = kUnit * lane; i < dim; i += kUnit * kLanes)
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(fresh + (warp - kHeads) * dim + i);
    }
  }
  __syncthreads();

  float q[kHeads][kUnit];
  Running<kHeads> run;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    run.most[h] = kNone, run.total[h] = 0;
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      q[h][j] = on ? heads[h * dim + d + j] * (p.scale * kLog2E) : 0.f;
      run.sums[h][j] = 0;
    }
  }
#pragma unroll 1
  for (int from = begin; from < end; from += kBatch * groups) {
    float score[kHeads][kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = from + group + i * groups;
      if (at == own && on) {
        k[i] = *reinterpret_cast<const uint4*>(fresh + d);
        v[i] = *reinterpret_cast<const uint4*>(fresh + dim + d);
      }
      float key[kUnit];
      unpack8<Kv>(k[i], key);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float a = 0, b = 0;
#pragma unroll
        for (int j = 0; j < kUnit / 2; ++j)
          a = fmaf(key[2 * j], q[h][2 * j], a), b = fmaf(key[2 * j + 1], q[h][2 * j + 1], b);
        score[h][i] = a + b;
      }
    }
#pragma unroll 1
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
#pragma unroll
        for (int h = 0; h < kHeads; ++h) score[h][i] += __shfl_xor_sync(kWholeWarp, score[h][i], mask);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float most = run.most[h];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (from + group + i * groups < end) most = fmaxf(most, score[h][i]);
      const float fade = power_of_two(run.most[h] - most);
      run.most[h] = most;
      run.total[h] *= fade;
#pragma unroll
      for (int j = 0; j < kUnit; ++j) run.sums[h][j] *= fade;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        score[h][i] = from + group + i * groups < end ? power_of_two(score[h][i] - most) : 0.f;
        run.total[h] += score[h][i];
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float value[kUnit];
      unpack8<Kv>(v[i], value);
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
#pragma unroll
        for (int j = 0; j < kUnit; ++j) run.sums[h][j] = fmaf(score[h][i], value[j], run.sums[h][j]);
    }
    if (from + kBatch * groups < end) load(from + kBatch * groups + group);
  }

  // Groups of a warp, then warps, in a fixed order.
#pragma unroll 1
  for (int mask = lanes; mask < kLanes; mask *= 2) join(run, mask);
  if (lane < lanes && on) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int j = 0; j < kUnit; ++j) parts[(warp * kHeads + h) * dim + d + j] = run.sums[h][j];
      if (d == 0) ends[2 * (warp * kHeads + h)] = run.most[h], ends[2 * (warp * kHeads + h) + 1] = run.total[h];
    }
  }
  __syncthreads();
  const bool whole = site.pieces.count == 1;
#pragma unroll 1
  for (int i = tid; i < kHeads * dim; i += kThreads) {
    const int h = i / dim, head = head0 + h;
    const float sink = whole && l.sinks ? __ldg(l.sinks + head) * kLog2E : kNone;
    float most = sink;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, ends[2 * (w * kHeads + h)]);
    float total = whole && l.sinks ? power_of_two(sink - most) : 0.f, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float share = power_of_two(ends[2 * (w * kHeads + h)] - most);
      total = fmaf(ends[2 * (w * kHeads + h) + 1], share, total);
      sum = fmaf(parts[(w * kHeads + h) * dim + i - h * dim], share, sum);
    }
    if (whole) {
      put(site.scratch + plan.attn + head * dim + i - h * dim, sum / total, site.tag);
    } else {
      put(site.scratch + plan.piece_sums + (int64_t(piece) * p.heads + head) * dim + i - h * dim, sum, site.tag);
      if (i == h * dim) {
        float* to = site.scratch + plan.piece_totals + (int64_t(piece) * p.heads + head) * 4;
        put(to, most, site.tag), put(to + 1, total, site.tag), put(to + 2, 0, site.tag), put(to + 3, 0, site.tag);
      }
    }
  }
}

// Four numbers of a head by a warp, a piece a lane.
__device__ inline void join_pieces(const AttendSite& site) {
  const LayersParams& p = site.job.p;
  const Plan& plan = site.job.plan;
  const int lane = int(threadIdx.x) % kLanes, warp = int(threadIdx.x) / kLanes, dim = p.head_dim;
#pragma unroll 1
  for (int quad = int(blockIdx.x) * kWarps + warp; quad < p.heads * dim / 4; quad += int(gridDim.x) * kWarps) {
    const int head = 4 * quad / dim;
    float4 sum = make_float4(0, 0, 0, 0), ends = make_float4(-3e38f, 0, 0, 0);
    if (lane < site.pieces.count) {
      const int64_t at = int64_t(lane) * p.heads;
      ends = get4(site.scratch + plan.piece_totals + (at + head) * 4, site.tag);
      sum = get4(site.scratch + plan.piece_sums + at * dim + 4 * quad, site.tag);
    }
    __syncwarp();
    const float sink = site.layer.sinks ? __ldg(site.layer.sinks + head) * kLog2E : -3e38f;
    float most = fmaxf(ends.x, sink);
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(kWholeWarp, most, mask));
    const float share = power_of_two(ends.x - most);
    float total = warp_sum(ends.y * share);
    if (site.layer.sinks) total += power_of_two(sink - most);
    const float out[4] = {warp_sum(sum.x * share), warp_sum(sum.y * share), warp_sum(sum.z * share),
                          warp_sum(sum.w * share)};
    if (lane < 4)
      put(site.scratch + plan.attn + 4 * quad + lane,
          (lane == 0   ? out[0]
           : lane == 1 ? out[1]
           : lane == 2 ? out[2]
                       : out[3]) /
              total,
          site.tag);
  }
}

__device__ inline int units_of(const AttendSite& site) {
  return site.job.p.heads / site.pieces.heads * site.pieces.count;
}
// The same in all layers with this window and table: they are found once.
__device__ inline Places places_of(const AttendSite& site) {
  const LayersParams& p = site.job.p;
  const LayerOf& l = site.layer;
  const int unit = int(blockIdx.x), piece = unit % site.pieces.count, head = unit / site.pieces.count;
  int lanes = 1;
#pragma unroll 1
  while (lanes * kUnit < p.head_dim) lanes *= 2;
  const int group = int(threadIdx.x) / lanes, d = int(threadIdx.x) % lanes;
  const int begin = max(first_visible(site.position, l.window), piece * site.pieces.length);
  const int end = min((piece + 1) * site.pieces.length, site.position);  // the row's own is not there yet
  const int32_t* table = l.block_table + int64_t(site.sequence) * l.max_blocks;
  Places places;
#pragma unroll 1
  for (int i = 0; i < kAtOnce; ++i) {
    const int at = begin + group + i * (kThreads / lanes);
    uint32_t where = ~0u;
    if (site.pieces.heads == 1 && head < p.heads && at < end && d * kUnit < p.head_dim)
      where = (uint32_t(table[at / p.block_tokens] * p.block_tokens + at % p.block_tokens) * uint32_t(p.kv_heads) +
               uint32_t(head / (p.heads / p.kv_heads))) *
                  uint32_t(p.head_dim / kUnit) +
              uint32_t(d);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (i == j) places.at[j] = where;
  }
  return places;
}

/// Whether this block has a piece.
__device__ inline bool attends(const AttendSite& site) { return int(blockIdx.x) < units_of(site); }

template <class Kv, class F>
__device__ void attend_row(const AttendSite& site, F when_ready) {
  const int units = units_of(site);
#pragma unroll 1
  for (int unit = int(blockIdx.x); unit < units; unit += int(gridDim.x)) {
    if (site.pieces.heads == 1)
      attend_unit<Kv, 1>(site, unit, when_ready);
    else
      attend_unit<Kv, 4>(site, unit, when_ready);
  }
  if (site.pieces.count > 1) join_pieces(site);
}

}  // namespace ef::cuda::stay
