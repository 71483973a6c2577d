// Attention of the row in layers.cu: a block takes one query head, or where the context is long several of a key head,
// and a piece of the positions. Products of matrices: the query heads by sixteen positions of a warp, where a query is
// two rows, its high and its low part. Keys and values go to registers, from where they are operands as they lie in
// memory, before the projections are there.
#pragma once
#include "layers.cuh"

namespace ef::cuda::stay {

constexpr int kTile = 16;  // positions of a product

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
  c.length = ((positions + c.count - 1) / c.count + kTile - 1) / kTile * kTile;
  return c;
}

/// What a block attends to at a time.
struct Cut {
  __device__ bool has(int at) const { return begin <= at && at < end; }
  int piece, head, kv_head;
  int begin, end;
  int own;         ///< the row's position, or -1 where it is not here
  bool keeps_own;  ///< one of the blocks that have the same new key stores it
};

struct AttendSite {
  __device__ AttendSite(const Job& job, const LayerOf& layer) : job(job), layer(layer) {}
  const Job& job;
  const LayerOf& layer;
  float* scratch = nullptr;  ///< the exchange
  float* space = nullptr;    ///< shared memory: attend_floats()
  const float *cos = nullptr, *sin = nullptr;
  int position = 0, sequence = 0;
  Pieces pieces;
  int units = 0;  ///< units_of()
  unsigned tag = 0;
};

__host__ __device__ inline int attend_row_halves(int head_dim) { return head_dim + 32; }
__host__ __device__ inline int attend_floats(int heads, int head_dim) {
  return (heads + 2) * head_dim + heads * attend_row_halves(head_dim) + head_dim + kWarps * heads * (head_dim + 2);
}

__device__ inline Cut cut_of(const AttendSite& site, int unit) {
  const LayersParams& p = site.job.p;
  const int group = p.heads / p.kv_heads;
  Cut cut;
  cut.piece = unit % site.pieces.count, cut.head = unit / site.pieces.count * site.pieces.heads;
  cut.kv_head = cut.head / group;
  cut.begin = max(first_visible(site.position, site.layer.window), cut.piece * site.pieces.length);
  cut.end = min((cut.piece + 1) * site.pieces.length, site.position + 1);
  cut.own = cut.has(site.position) ? site.position : -1;
  cut.keeps_own = cut.head % group == 0;
  return cut;
}

/// Where a lane's keys and values of a tile lie, by 16 bytes from those of the layer, and which of them there are: of
/// two keys, then of four values.
struct Place {
  uint32_t key = 0, value = 0, there = 0;
};
#ifdef EF_CUDA_EMULATED
__device__ inline uint4 load_where(const uint8_t* at, bool there) {
  return there ? *reinterpret_cast<const uint4*>(at) : make_uint4(0, 0, 0, 0);
}
#else
// Zeros where it is not there; nobody waits for it before it is used.
__device__ inline uint4 load_where(const uint8_t* at, bool there) {
  uint4 v;
  asm volatile(
      "{.reg .pred p;\n setp.ne.b32 p, %5, 0;\n mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
      "@p ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(at), "r"(int(there)));
  return v;
}
#endif

// Keys and values of a warp's tile, in the order in which they are operands. Of a key, lane 4 g + t has the chunks t,
// t + 4, .. of sixteen bytes; of a value the chunks g, g + 8, ...
constexpr int kQuads = kMostHeadDim / (4 * kUnit);
struct Held {
  uint4 k[2][kQuads];      // positions g, 8 + g
  uint4 v[4][kQuads / 2];  // positions 2 t, 2 t + 1, 8 + 2 t, 9 + 2 t
};

__device__ inline int tile_of(int from) { return from + kTile * (int(threadIdx.x) / kLanes); }
__device__ inline int token_of(const AttendSite& site, int at) {
  const LayerOf& l = site.layer;
  const int shift = site.job.plan.block_shift;
  const int block = __ldg(l.block_table + int64_t(site.sequence) * l.max_blocks + (at >> shift));
  return (block << shift) + (at & (site.job.p.block_tokens - 1));
}
__device__ inline Place place_of_tile(const AttendSite& site, const Cut& cut, int tile) {
  Place place;
  if (tile >= cut.end) return place;
  const LayersParams& p = site.job.p;
  const int lane = int(threadIdx.x) % kLanes, g = lane / 4, t = lane % 4;
  const uint32_t token = uint32_t(token_of(site, tile)), units = uint32_t(p.head_dim / kUnit);
  place.key = ((token + g) * p.kv_heads + cut.kv_head) * units + t;
  place.value = ((token + 2 * t) * p.kv_heads + cut.kv_head) * units + g;
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    const int at = tile + (i < 2 ? 8 * i + g : (i - 2) / 2 * 8 + 2 * t + i % 2);
    if (cut.has(at) && at != cut.own) place.there |= 1u << i;
  }
  return place;
}
__device__ inline void load_tile(const AttendSite& site, const Place& place, Held& to) {
  const LayersParams& p = site.job.p;
  const int lane = int(threadIdx.x) % kLanes, g = lane / 4, t = lane % 4, chunks = p.head_dim / kUnit;
  const uint32_t row = uint32_t(p.kv_heads * chunks);
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const uint8_t* from = site.layer.keys + uint64_t(place.key + 8 * b * row) * 16;
#pragma unroll
    for (int j = 0; j < kQuads; ++j)
      to.k[b][j] = load_where(from + 64 * j, (place.there >> b & 1) && t + 4 * j < chunks);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const uint8_t* from = site.layer.values + uint64_t(place.value + (c / 2 * 8 + c % 2) * row) * 16;
#pragma unroll
    for (int j = 0; j < kQuads / 2; ++j)
      to.v[c][j] = load_where(from + 128 * j, (place.there >> (2 + c) & 1) && g + 8 * j < chunks);
  }
}
// The row's own key and value are not in memory yet. in: where it is in the tile.
__device__ inline void put_own(const uint8_t* key, const uint8_t* value, int chunks, int in, Held& to) {
  const int lane = int(threadIdx.x) % kLanes, g = lane / 4, t = lane % 4;
  if (in < 0 || in >= kTile) return;
#pragma unroll
  for (int b = 0; b < 2; ++b)
#pragma unroll
    for (int j = 0; j < kQuads; ++j)
      if (in == 8 * b + g && t + 4 * j < chunks) to.k[b][j] = *reinterpret_cast<const uint4*>(key + 16 * (t + 4 * j));
#pragma unroll
  for (int c = 0; c < 4; ++c)
#pragma unroll
    for (int j = 0; j < kQuads / 2; ++j)
      if (in == c / 2 * 8 + 2 * t + c % 2 && g + 8 * j < chunks)
        to.v[c][j] = *reinterpret_cast<const uint4*>(value + 16 * (g + 8 * j));
}

// Element i of a head that has been normed and clipped, rotated.
__device__ inline float rotated(const AttendSite& site, const float* x, int i) {
  const LayersParams& p = site.job.p;
  const float v = x[i];
  if (i >= p.rotary) return v;
  const int pairs = p.rotary / 2;
  const bool second = p.interleaved ? i % 2 : i >= pairs;
  const int pair = p.interleaved ? i / 2 : second ? i - pairs : i;
  const float other = x[p.interleaved ? i ^ 1 : second ? i - pairs : i + pairs];
  const float a = v * site.cos[pair], b = other * site.sin[pair];
  return second ? a + b : a - b;
}

template <class Kv>
__device__ void put_parts(typename Kv::T* high, typename Kv::T* low, float v) {
  // Beyond what float16 holds a softmax has decided; a NaN stays.
  if (std::is_same_v<Kv, KvF16>) v = v < -65504.f ? -65504.f : v > 65504.f ? 65504.f : v;
  *high = Kv::put(v);
  *low = Kv::put(v - Kv::unpack(Kv::pack(v, 0)).x);
}

// when_ready(): by each warp, once the block has the projections.
template <class Kv, class F>
__device__ void attend_unit(const AttendSite& site, const Cut& cut, Held& held, F when_ready) {
  using T = typename Kv::T;
  constexpr float kNone = -3e38f;  // no score: its tag does no harm
  const LayersParams& p = site.job.p;
  const LayerOf& l = site.layer;
  const Plan& plan = site.job.plan;
  const int tid = int(threadIdx.x), lane = tid % kLanes, warp = tid / kLanes, g = lane / 4, t = lane % 4;
  const int dim = p.head_dim, heads = site.pieces.heads, stride = attend_row_halves(dim), chunks = dim / kUnit;
  float* plain = site.space;                                     // [heads + 2, dim]
  T* queries = reinterpret_cast<T*>(plain + (heads + 2) * dim);  // [2, heads, stride]: high parts, low parts
  T* fresh = queries + 2 * heads * stride;                       // [2, dim]
  float* parts = reinterpret_cast<float*>(fresh + 2 * dim);      // [kWarps, heads, dim], then [kWarps, heads, 2]
  float* ends = parts + kWarps * heads * dim;
  // Heads, and the new key and value where they are this block's: a warp each.
  const int items = heads + (cut.own >= 0 ? 2 : 0);
  const bool has_item = warp < items;
  const float* norm = warp < heads ? l.q_norm : warp == heads ? l.k_norm : nullptr;
  float* mine = plain + warp * dim;
  float weight[kQuads];
  if (has_item) {
#pragma unroll
    for (int j = 0; j < kQuads; ++j)
      if (norm && lane + kLanes * j < dim) weight[j] = __ldg(norm + lane + kLanes * j);
    const int first =
        warp < heads ? (cut.head + warp) * dim : (p.heads + (warp - heads) * p.kv_heads + cut.kv_head) * dim;
#pragma unroll 1
    for (int i = 4 * lane; i < dim; i += 4 * kLanes)
      *reinterpret_cast<float4*>(mine + i) = get4(site.scratch + plan.qkv + first + i, site.tag);
  }
  __syncthreads();
  when_ready();
  if (has_item) {
    float inverse = 1.f;
    if (norm) {
      float sum = 0;
#pragma unroll 1
      for (int i = lane; i < dim; i += kLanes) sum = fmaf(mine[i], mine[i], sum);
      inverse = 1.f / sqrtf(warp_sum(sum) / float(dim) + p.head_eps);
    }
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int i = lane + kLanes * j;
      if (i >= dim) break;
      float v = mine[i];
      if (norm) v = v * inverse * weight[j];
      // Written so that a NaN stays.
      if (p.clip > 0) v = v < -p.clip ? -p.clip : v > p.clip ? p.clip : v;
      mine[i] = v;
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < dim; i += kLanes) {
      const float v = warp <= heads ? rotated(site, mine, i) : mine[i];
      if (warp < heads)
        put_parts<Kv>(queries + warp * stride + i, queries + (heads + warp) * stride + i, v * (p.scale * kLog2E));
      else
        fresh[(warp - heads) * dim + i] = Kv::put(v);
    }
    if (warp >= heads && cut.keeps_own) {
      __syncwarp();
      T* to = reinterpret_cast<T*>(warp == heads ? l.keys : l.values) +
              (int64_t(token_of(site, cut.own)) * p.kv_heads + cut.kv_head) * dim;
#pragma unroll 1
      for (int i = kUnit * lane; i < dim; i += kUnit * kLanes)
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(fresh + (warp - heads) * dim + i);
    }
  }
  __syncthreads();

  float most = kNone, total = 0;
  float* const of_warp = parts + (warp * heads + g) * dim;  // where g is a head
  const int start = cut.begin / kTile * kTile;
  int from = start;
#pragma unroll 1
  do {  // once where there is no position: sums are zero then
    const int tile = tile_of(from);
    if (from > start) load_tile(site, place_of_tile(site, cut, tile), held);
    if (cut.own >= 0)
      put_own(reinterpret_cast<const uint8_t*>(fresh), reinterpret_cast<const uint8_t*>(fresh + dim), chunks,
              cut.own - tile, held);
    float dots[2][4] = {};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      uint4 high = make_uint4(0, 0, 0, 0), low = high;
      if (g < heads && t + 4 * j < chunks) {
        high = *reinterpret_cast<const uint4*>(queries + g * stride + kUnit * (t + 4 * j));
        low = *reinterpret_cast<const uint4*>(queries + (heads + g) * stride + kUnit * (t + 4 * j));
      }
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const uint4& k = held.k[b][j];
        Kv::mma(dots[b], {high.x, low.x, high.y, low.y}, {k.x, k.y});
        Kv::mma(dots[b], {high.z, low.z, high.w, low.w}, {k.z, k.w});
      }
    }
    // Of head g: positions 2 t and 2 t + 1 of each eight.
    float largest = most, score[2][2];
#pragma unroll
    for (int b = 0; b < 2; ++b)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        score[b][e] = dots[b][e] + dots[b][2 + e];
        if (cut.has(tile + 8 * b + 2 * t + e)) largest = fmaxf(largest, score[b][e]);
      }
    largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, 2));
    const float fade = power_of_two(most - largest);
    total *= fade;
    most = largest;
    float sums[kQuads / 2][kUnit][4] = {};
    if (tile < cut.end) {
      uint32_t share[4];
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        float of[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          of[e] = cut.has(tile + 8 * b + 2 * t + e) ? power_of_two(score[b][e] - most) : 0.f;
          total += of[e];
        }
        share[2 * b] = Kv::pack(of[0], of[1]);
        const float2 high = Kv::unpack(share[2 * b]);
        share[2 * b + 1] = Kv::pack(of[0] - high.x, of[1] - high.y);
      }
#pragma unroll
      for (int j = 0; j < kQuads / 2; ++j) {
        const uint4 &a = held.v[0][j], &b = held.v[1][j], &c = held.v[2][j], &d = held.v[3][j];
        const uint32_t words[4][4] = {
            {a.x, b.x, c.x, d.x}, {a.y, b.y, c.y, d.y}, {a.z, b.z, c.z, d.z}, {a.w, b.w, c.w, d.w}};
#pragma unroll
        for (int e = 0; e < kUnit; ++e) {
          const uint32_t(&w)[4] = words[e / 2];
          const unsigned halves = e % 2 ? 0x7632 : 0x5410;
          Kv::mma(sums[j][e], share, {__byte_perm(w[0], w[1], halves), __byte_perm(w[2], w[3], halves)});
        }
      }
    }
    // Added to what the tiles before have left: registers are for one pass.
#pragma unroll
    for (int j = 0; j < kQuads / 2; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int chunk = 2 * t + c + 8 * j;
        if (g >= heads || chunk >= chunks) continue;
#pragma unroll
        for (int e = 0; e < kUnit; e += 4) {
          float4& to = *reinterpret_cast<float4*>(of_warp + kUnit * chunk + e);
          float4 all =
              make_float4(sums[j][e][c] + sums[j][e][2 + c], sums[j][e + 1][c] + sums[j][e + 1][2 + c],
                          sums[j][e + 2][c] + sums[j][e + 2][2 + c], sums[j][e + 3][c] + sums[j][e + 3][2 + c]);
          if (from > start)
            all = make_float4(fmaf(to.x, fade, all.x), fmaf(to.y, fade, all.y), fmaf(to.z, fade, all.z),
                              fmaf(to.w, fade, all.w));
          to = all;
        }
      }
    from += kWarps * kTile;
  } while (from < cut.end);
  // Lanes of a head, then warps, in a fixed order.
  total += __shfl_xor_sync(kWholeWarp, total, 1);
  total += __shfl_xor_sync(kWholeWarp, total, 2);
  if (g < heads && t == 0) ends[2 * (warp * heads + g)] = most, ends[2 * (warp * heads + g) + 1] = total;
  __syncthreads();
  const bool whole = site.pieces.count == 1;
#pragma unroll 1
  for (int i = tid; i < heads * dim; i += kThreads) {
    const int h = heads == 1 ? 0 : i / dim, head = cut.head + h;
    const float sink = whole && l.sinks ? __ldg(l.sinks + head) * kLog2E : kNone;
    float most = sink;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, ends[2 * (w * heads + h)]);
    float total = whole && l.sinks ? power_of_two(sink - most) : 0.f, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float share = power_of_two(ends[2 * (w * heads + h)] - most);
      total = fmaf(ends[2 * (w * heads + h) + 1], share, total);
      sum = fmaf(parts[(w * heads + h) * dim + i - h * dim], share, sum);
    }
    if (whole) {
      put(site.scratch + plan.attn + head * dim + i - h * dim, sum / total, site.tag);
    } else {
      put(site.scratch + plan.piece_sums + (int64_t(cut.piece) * p.heads + head) * dim + i - h * dim, sum, site.tag);
      if (i == h * dim) {
        float* to = site.scratch + plan.piece_totals + (int64_t(cut.piece) * p.heads + head) * 4;
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

__device__ inline int units_of(const LayersParams& p, const Pieces& pieces) {
  return p.heads / pieces.heads * pieces.count;
}
/// Whether this block has a piece.
__device__ inline bool attends(const AttendSite& site) { return int(blockIdx.x) < site.units; }

/// Where a unit's first tile lies; the same in all layers with this window and table.
__device__ inline Place first_place(const AttendSite& site, const Cut& cut) {
  return place_of_tile(site, cut, tile_of(cut.begin / kTile * kTile));
}

// held: of a block that attends, the first tile of its first unit.
template <class Kv, class F>
__device__ void attend_row(const AttendSite& site, Cut cut, Held& held, F when_ready) {
#pragma unroll 1
  for (int unit = int(blockIdx.x); unit < site.units;) {
    attend_unit<Kv>(site, cut, held, when_ready);
    unit += int(gridDim.x);
    if (unit >= site.units) break;
    cut = cut_of(site, unit);
    load_tile(site, first_place(site, cut), held);
  }
  if (site.pieces.count > 1) join_pieces(site);
}

}  // namespace ef::cuda::stay
