// One kernel for all layers of a row: a block on every multiprocessor, and no launch between the phases of a layer, so
// that weights of a phase are read while blocks still wait for the numbers of the one before: layers.cuh.
#include <algorithm>

#include "activate.cuh"
#include "layers_attend.cuh"
#include "layers_route.cuh"

namespace ef::cuda {
namespace stay {
namespace {

// A block at work: shared memory, and what its threads keep from phase to phase.
template <class F>
struct Block {
  __device__ Block(const Job& job, uint8_t* memory)
      : job(job),
        p(job.p),
        plan(job.plan),
        chosen(*reinterpret_cast<Chosen*>(memory + plan.chosen)),
        of_warps(*reinterpret_cast<OfWarps*>(memory + plan.of_warps)),
        first(*reinterpret_cast<Cut*>(memory + plan.first)),
        layers(reinterpret_cast<LayerOf*>(memory + plan.layers)),
        vector(reinterpret_cast<float*>(memory + plan.vector)),
        sums(reinterpret_cast<float*>(memory + plan.sums)),
        own(reinterpret_cast<float*>(memory + plan.own)),
        cos(reinterpret_cast<float*>(memory + plan.turn)),
        table(reinterpret_cast<const uint8_t**>(memory + plan.table)),
        scratch(static_cast<float*>(p.scratch)),
        lots(p, plan, reinterpret_cast<Lot*>(memory + plan.lots)),
        feed(p, memory, lots, chosen, layers) {}

  // What the router needs and others do not write: the begin of a row of its matrix, and where experts lie.
  static constexpr int kEarly = 2;  // parts of four columns
  struct Early {
    uint4 words[kEarly];
    const uint8_t* pointers[3];
    float bias;
  };

  __device__ void run() {
    begin();
#pragma unroll 1
    for (layer = 0; layer < p.count; ++layer) {
      tag = unsigned(layer) & 1;
      if (layer + 1 == p.count) let_later_start();
#pragma unroll 1
      for (int phase = kQkv; phase < kPhases; ++phase) {
        Early early;
        if (phase == kGated) fetch_early(early);
        fetch(phase, early);
        if (phase == kGated) {
          rate(early);
          choose();
        }
        multiply(phase);
        __syncthreads();
        // Numbers that are waited for would come behind the weights that are asked for first.
        const bool attending = phase == kQkv && attends(site());
        finish(phase);
        if (!attending) feed.fill();
        if (phase == kQkv) {
          attend(attending);
          read_layer(layer + 1);
        }
      }
    }
    leave_all(p.arrived);
  }

  // Marks all numbers of the exchange as the layer's before the first; those of x are x.
  __device__ void begin() {
    const int all = int(gridDim.x) * kThreads, me = int(blockIdx.x) * kThreads + tid;
    read_layer(0);
    __syncthreads();
    feed.fill();
#pragma unroll 1
    for (int64_t i = me; i < plan.after_experts; i += all) show(scratch + i, 1u);
    for (int i = lots.columns.first + tid; i < lots.columns.end; i += kThreads) {
      own[i - lots.columns.first] = p.x[i];
      put(scratch + plan.after_experts + i, p.x[i], 1);
    }
    for (int i = tid; i < p.rotary / 2; i += kThreads) cos[i] = p.cos[i], cos[p.rotary / 2 + i] = p.sin[i];
    position = *p.position, sequence = *p.sequence;
    pieces = pieces_for(plan, position + 1);
    units = units_of(p, pieces);
    const Cut cut = cut_of(site(), int(blockIdx.x));
    if (tid == 0) first = cut;
    if (attends(site())) place = first_place(site(), cut);
    meet_all(p.arrived);
  }

  // From the launch's arguments, where a first look takes long: a layer ahead.
  __device__ void read_layer(int which) {
    constexpr int kWords = sizeof(LayerOf) / sizeof(uint32_t);
    if (which < p.count && tid < kWords)
      reinterpret_cast<uint32_t*>(layers + which % 2)[tid] = reinterpret_cast<const uint32_t*>(&p.layer[which])[tid];
  }

  __device__ AttendSite site() const {
    AttendSite site(job, l());
    site.scratch = scratch, site.space = vector;
    site.cos = cos, site.sin = cos + p.rotary / 2;
    site.position = position, site.sequence = sequence, site.pieces = pieces, site.units = units, site.tag = tag;
    return site;
  }
  __device__ bool placed() const {
    const LayerOf &here = l(), &first = p.layer[0];
    return here.block_table == first.block_table && here.window == first.window;
  }
  __device__ void attend(bool attending) {
    const auto when_ready = [&] { feed.fill(); };
    const AttendSite here = site();
    Held held;
    Cut cut = first;
    if (attending) {
      Place at = place;
      if (!placed()) cut = cut_of(here, int(blockIdx.x)), at = first_place(here, cut);
      load_tile(here, at, held);
    }
    if (p.kv_type == 1)
      attend_row<KvF16>(here, cut, held, when_ready);
    else
      attend_row<KvBF16>(here, cut, held, when_ready);
  }

  // What a phase multiplies, to shared memory.
  __device__ void fetch(int phase, Early& early) {
    const bool normed = phase == kQkv || phase == kGated, rated = phase == kGated && int(blockIdx.x) < p.route.experts;
    const int64_t from = phase == kQkv     ? plan.after_experts
                         : phase == kO     ? plan.attn
                         : phase == kGated ? plan.after_attn
                                           : plan.middle;
    const int n = normed ? p.hidden : phase == kO ? p.heads * p.head_dim : p.route.top_k * p.ffn;
    const float* weight = phase == kQkv ? l().attn_norm : phase == kGated ? l().ffn_norm : nullptr;
    plain = phase == kGated && p.route.experts > int(gridDim.x) ? vector + n : nullptr;
    Rest rest;
    // The weights take about three times as long as the first one.
    if (phase == kDown) rest = {unsigned(lots.columns.count() * n / 48), 300};
    if (phase == kO && !attends(site())) rest = {0, 150};
    float logit = 0;
    factor = gather<F>(
        {reinterpret_cast<uint32_t*>(vector), plain}, scratch + from, n, weight, phase == kQkv ? tag ^ 1 : tag, rest,
        of_warps,
        [&](int j, bool first, int i, const float4& x) {
          if (!rated) return;
          const bool there = first && j < kEarly;
          logit += router_sum(there ? early.words[j < kEarly ? j : 0] : router_words(int(blockIdx.x), i), x);
        },
        [&] {
          if (phase != kGated) return;
          if (tid < p.route.experts) keep_pointers(tid, early.pointers);
#pragma unroll 1
          for (int e = tid + kThreads; e < p.route.experts; e += kThreads)
            pointers_of(e, early.pointers), keep_pointers(e, early.pointers);
          logit = warp_sum(logit);
          if (lane == 0) of_warps.rated[warp] = logit;
        });
    if (normed) inverse = inverse_rms_of(of_warps.squares, p.hidden, phase == kQkv ? p.attn_eps : p.ffn_eps);
    factor *= normed ? inverse : 1.f;
  }

  __device__ void multiply(int phase) {
    const int begin = lots_before(phase), end = lots_before(phase + 1), chunks = lots.chunks(phase);
    const uint32_t* pairs = reinterpret_cast<const uint32_t*>(vector);
    feed.fill();
    // Sums of a row side by side, one for each chunk of columns; up behind gate.
    const int step = phase == kGated ? 2 * chunks : chunks, high = phase == kGated ? chunks : kHalf * chunks;
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const Lot lot = lots.list[i];
      const uint32_t* x = pairs + (phase == kDown ? lot.source / 3 * p.ffn : 0);
      float2 sum = feed.next(lot, x, phase == kDown || feed.wants(layer, end));
      if (phase >= kGated && !chosen.matrix[lot.source]) sum = make_float2(0, 0);
      const int row = lane / 4;
      float* to = sums + (lot.base + row) * step + lot.chunk;
      if (lane % 4 > 0) continue;
      if (row < lot.low) to[0] = sum.x;
      if (row < lot.high) to[high] = sum.y;
    }
  }
  __device__ int lots_before(int phase) const {
    return phase == kQkv     ? feed.first[kQkv]
           : phase == kO     ? feed.first[kO]
           : phase == kGated ? feed.first[kGated]
           : phase == kDown  ? feed.first[kDown]
                             : feed.first[kPhases];
  }

  // From sums to what other blocks wait for.
  // Four lanes a result: the sums of its chunks, or experts, go round them.
  __device__ void finish(int phase) {
    constexpr int kLanesEach = 4;
    const int n = phase == kQkv ? lots.qkv.count() : phase == kGated ? lots.gated.count() : lots.columns.count();
    const int chunks = lots.chunks(phase), mine = tid % kLanesEach;
#pragma unroll 1
    for (int base = warp * (kLanes / kLanesEach); base < n; base += kThreads / kLanesEach) {
      const int i = base + lane / kLanesEach, at = min(i, n - 1);
      float sum, up = 0;
      if (phase == kDown) {
        sum = sum_of_experts<kLanesEach>(at, chunks, mine);
      } else {
        const float* from = sums + at * (phase == kGated ? 2 * chunks : chunks);
        sum = sum_by<kLanesEach>(from, chunks, mine) * factor;
        if (phase == kGated) up = sum_by<kLanesEach>(from + chunks, chunks, mine) * factor;
      }
      if (mine > 0 || i >= n) continue;
      if (phase == kQkv)
        finish_qkv(i, sum);
      else if (phase == kO)
        finish_o(i, sum);
      else if (phase == kGated)
        finish_gated(i, sum, up);
      else
        finish_down(i, sum);
    }
  }
  template <int kEach>
  static __device__ float sum_by(const float* from, int n, int mine) {
    float sum = 0;
#pragma unroll 1
    for (int c = mine; c < n; c += kEach) sum += from[c];
#pragma unroll
    for (int mask = kEach / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, mask);
    return sum;
  }
  // Of a column, in rank order.
  template <int kEach>
  __device__ float sum_of_experts(int column, int chunks, int mine) const {
    float sum = 0;
#pragma unroll 1
    for (int first = 0; first < p.route.top_k; first += kEach) {
      const int k = first + mine;
      float part = 0;
      if (k < p.route.top_k)
        part = chosen.weight[k] * (sum_of(sums + (k * lots.columns.count() + column) * chunks, chunks) * factor);
#pragma unroll
      for (int i = 0; i < kEach; ++i) sum += __shfl_sync(kWholeWarp, part, lane / kEach * kEach + i);
    }
    return sum;
  }
  __device__ void finish_qkv(int i, float sum) {
    int begin, end;
    const int row = lots.qkv.first + i, matrix = lots.matrix_of(row, begin, end);
    const float* bias = matrix == 0 ? l().q_bias : matrix == 1 ? l().k_bias : l().v_bias;
    if (bias) sum += __ldg(bias + row - begin);
    put(scratch + plan.qkv + row, sum, tag);
  }
  __device__ void finish_o(int i, float sum) {
    const int column = lots.columns.first + i;
    if (l().o_bias) sum += __ldg(l().o_bias + column);
    own[i] += p.attn_scale * sum;
    put(scratch + plan.after_attn + column, own[i], tag);
  }
  __device__ void finish_gated(int i, float gate, float up) {
    put(scratch + plan.middle + lots.gated.first + i,
        activate(p.activation.kind, p.activation.alpha, p.activation.limit, gate, up), tag);
  }
  // x += the experts' outputs.
  __device__ void finish_down(int i, float sum) {
    own[i] += p.experts_scale * sum;
    if (layer + 1 < p.count)
      put(scratch + plan.after_experts + lots.columns.first + i, own[i], tag);
    else
      p.x[lots.columns.first + i] = own[i];
  }

  __device__ void fetch_early(Early& early) const {
    const int e = int(blockIdx.x);
    early.bias = 0;
#pragma unroll
    for (int j = 0; j < kEarly; ++j)
      if (e < p.route.experts && 4 * (tid + kThreads * j) < p.hidden)
        early.words[j] = router_words(e, 4 * (tid + kThreads * j));
    if (tid < p.route.experts) pointers_of(tid, early.pointers);
    if (tid == 0 && e < p.route.experts && l().router_bias) early.bias = __ldg(l().router_bias + e);
  }
  // Four columns from c on.
  __device__ uint4 router_words(int e, int c) const {
    const uint8_t* row = l().router + int64_t(e) * p.hidden * (p.router_format == Fmt::kF32 ? 4 : 2);
    if (p.router_format == Fmt::kF32) return __ldg(reinterpret_cast<const uint4*>(row) + c / 4);
    const uint2 two = __ldg(reinterpret_cast<const uint2*>(row) + c / 4);
    return make_uint4(two.x, two.y, 0, 0);
  }
  __device__ float router_sum(const uint4& words, const float4& x) const {
    float w[4];
    if (p.router_format == Fmt::kF32) {
      w[0] = __uint_as_float(words.x), w[1] = __uint_as_float(words.y);
      w[2] = __uint_as_float(words.z), w[3] = __uint_as_float(words.w);
    } else {
      const bool half = p.router_format == Fmt::kF16;
      const float2 a = half ? KvF16::unpack(words.x) : KvBF16::unpack(words.x);
      const float2 b = half ? KvF16::unpack(words.y) : KvBF16::unpack(words.y);
      w[0] = a.x, w[1] = a.y, w[2] = b.x, w[3] = b.y;
    }
    return fmaf(w[3], x.w, fmaf(w[2], x.z, fmaf(w[1], x.y, w[0] * x.x)));
  }
  __device__ void pointers_of(int e, const uint8_t* (&out)[3]) const {
    const ExpertEntry* entry = l().table + e;
    out[0] = entry->gate.data, out[1] = entry->up.data, out[2] = entry->down.data;
  }
  __device__ void keep_pointers(int e, const uint8_t* const (&from)[3]) {
    for (int i = 0; i < 3; ++i) table[3 * e + i] = from[i];
  }

  // Logits of the router: experts go round the blocks; the first came with the vector.
  __device__ void rate(const Early& early) {
    const int experts = p.route.experts;
    if (tid == 0 && int(blockIdx.x) < experts)
      put(scratch + plan.logits + blockIdx.x, sum_of(of_warps.rated, kWarps) * inverse + early.bias, tag);
    float* const parts = sums;  // [kWarps]
#pragma unroll 1
    for (int e = int(blockIdx.x + gridDim.x); e < experts; e += int(gridDim.x)) {
      float sum = 0;
#pragma unroll 1
      for (int c = 4 * tid; c < p.hidden; c += 4 * kThreads)
        sum += router_sum(router_words(e, c), *reinterpret_cast<const float4*>(plain + c));
      sum = warp_sum(sum);
      if (lane == 0) parts[warp] = sum;
      __syncthreads();
      if (tid == 0) {
        float logit = sum_of(parts, kWarps) * inverse;
        if (l().router_bias) logit += __ldg(l().router_bias + e);
        put(scratch + plan.logits + e, logit, tag);
      }
      __syncthreads();
    }
  }

  // Every block makes the choice for itself, by one warp.
  __device__ void choose() {
    RouteParams rules = p.route;
    rules.selection_bias = l().selection_bias;
    const bool few = few_routes(rules);
    if (!few) {
      read_logits();
      __syncthreads();
    }
    if (warp > 0) {
      __syncthreads();
    } else if (few) {
      rules.experts <= kLanes * 4 ? choose_few<4>(rules) : choose_few<kRouted>(rules);
    } else {
      rules.ids = chosen.id, rules.weights = chosen.weight;
      routing::route_row(rules, 0, sums, sums + rules.experts, lane);
      __syncwarp();
      keep_choice(rules, chosen.id[lane % rules.top_k]);
      __syncthreads();
    }
    feed.knows(layer);
  }
  // The weights, which are not wanted before the last phase, while others go on.
  template <int kEach>
  __device__ void choose_few(const RouteParams& rules) {
    Few<kEach> few;
    few.read(rules, scratch + plan.logits, tag, lane);
    const int id = few.choose(rules, lane);
    keep_choice(rules, id);
    __syncthreads();
    feed.knows(layer), feed.fill();
    const float weight = few.weigh(rules, id, lane);
    if (lane < rules.top_k) chosen.weight[lane] = weight;
  }
  __device__ void keep_choice(const RouteParams& rules, int id) {
    if (lane >= rules.top_k) return;
    const bool exists = unsigned(id) < unsigned(rules.experts);
    for (int i = 0; i < 3; ++i) chosen.matrix[3 * lane + i] = exists ? table[3 * id + i] : nullptr;
    if (!exists) chosen.weight[lane] = 0.f;
  }
  __device__ void read_logits() {
#pragma unroll 1
    for (int e = tid; e < p.route.experts; e += kThreads) sums[e] = get(scratch + plan.logits + e, tag);
  }
  __device__ const LayerOf& l() const { return layers[layer % 2]; }
  static __device__ float sum_of(const float* from, int n) {
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < n; ++i) sum += from[i];
    return sum;
  }

  const Job& job;
  const LayersParams& p;
  const Plan& plan;
  Chosen& chosen;
  OfWarps& of_warps;
  Cut& first;       // unit, if it attends
  LayerOf* layers;  // [2]: this one and the next
  float *vector, *sums, *own, *cos;
  float* plain = nullptr;  // in vector, for the router
  const uint8_t** table;
  float* scratch;
  Lots lots;
  Feed<F> feed;
  const int tid = int(threadIdx.x), lane = tid % kLanes, warp = tid / kLanes;
  int layer = 0, position = 0, sequence = 0;
  Pieces pieces;
  int units = 0;
  Place place;
  unsigned tag = 0;
  // What sums of products are to be multiplied by, and of that what normalises.
  float factor = 1.f, inverse = 1.f;
};

template <class F>
__global__ void __launch_bounds__(kThreads, 1) layers_kernel(const __grid_constant__ Job job) {
  EF_DYNAMIC_SHARED(uint8_t, memory);
  Block<F>(job, memory).run();
}

// ---- How it is cut ----

int64_t per_block(int64_t n, int64_t blocks) { return (n + blocks - 1) / blocks; }

void place_exchange(const LayersParams& p, Plan& plan) {
  const auto take = [&](int64_t& at, int64_t n) { at = plan.floats, plan.floats += (n + 63) / 64 * 64; };
  const int64_t width = int64_t(p.heads) * p.head_dim, pieces = std::max(plan.short_pieces, plan.long_pieces);
  take(plan.qkv, width + 2 * int64_t(p.kv_heads) * p.head_dim);
  take(plan.attn, width);
  take(plan.piece_sums, pieces * width);
  take(plan.piece_totals, pieces * p.heads * 4);
  take(plan.after_attn, p.hidden);
  take(plan.logits, p.route.experts);
  take(plan.middle, int64_t(p.route.top_k) * p.ffn);
  take(plan.after_experts, p.hidden);  // the last: it begins with numbers of its own
}

bool place_shared(const LayersParams& p, Plan& plan) {
  const int64_t top_k = p.route.top_k, q = int64_t(p.heads) * p.head_dim, kv = int64_t(p.kv_heads) * p.head_dim;
  const auto chunks = [](int64_t cols) { return (cols + kChunk - 1) / kChunk; };
  const int64_t columns = per_block(p.hidden, plan.blocks), qkv = per_block(q + 2 * kv, plan.blocks),
                gated = per_block(top_k * p.ffn, plan.blocks);
  const int64_t in = chunks(p.hidden), o = chunks(q), down = chunks(p.ffn);
  // Pieces of rows that no lot goes beyond: matrices, experts.
  const auto of_warp = [](int64_t lots) { return per_block(lots, kWarps); };
  plan.most_lots = int(of_warp((per_block(qkv, kRows) + 2) * in) + of_warp(per_block(columns, kRows) * o) +
                       of_warp((per_block(gated, kHalf) + per_block(gated, p.ffn) + 1) * in) +
                       of_warp(top_k * per_block(columns, kRows) * down));
  int64_t at = int64_t(kWarps) * kSlots * kLotBytes;
  const auto take = [&](int& place, int64_t bytes) { place = int(at), at += (bytes + 15) / 16 * 16; };
  take(plan.chosen, sizeof(Chosen));
  take(plan.of_warps, sizeof(OfWarps));
  take(plan.first, sizeof(Cut));
  take(plan.layers, 2 * sizeof(LayerOf));
  take(plan.lots, kWarps * int64_t(sizeof(Lot)) * plan.most_lots);
  take(plan.vector,
       4 * std::max<int64_t>({2 * int64_t(p.hidden), q, top_k * p.ffn, attend_floats(plan.long_heads, p.head_dim)}));
  take(plan.sums, 4 * std::max<int64_t>({qkv * in, columns * o, 2 * gated * in, top_k * columns * down, kWarps,
                                         p.route.experts + routing::row_floats(p.route)}));
  take(plan.table, 24 * int64_t(p.route.experts));
  take(plan.own, 4 * columns);
  take(plan.turn, 4 * p.rotary);
  plan.shared = size_t(at);
  return at <= device_traits().shared_bytes;
}

bool make_plan(const LayersParams& p, Plan& plan) {
  const int top_k = p.route.top_k, dim = p.head_dim;
  if (!device_traits().blocks_meet || p.count < 1 || p.count > kLayersAtOnce) return false;
  constexpr int kOldest = 80;  // of devices with products of bfloat16
  if (device_traits().capability < kOldest || (p.format != Fmt::kF16 && p.format != Fmt::kBF16)) return false;
  if (p.router_format != Fmt::kF32 && p.router_format != Fmt::kF16 && p.router_format != Fmt::kBF16) return false;
  if (p.kv_type != 1 && p.kv_type != 2) return false;
  if (dim < kUnit || dim % kUnit != 0 || dim > kMostHeadDim || p.kv_heads < 1 || p.heads % p.kv_heads != 0)
    return false;
  if (top_k < 1 || top_k > kMostTopK || p.route.experts < top_k) return false;
  constexpr int kStep = 16;  // columns of a product of matrices
  for (const int cols : {p.hidden, p.heads * dim, p.ffn})
    if (cols < kStep || cols % kStep != 0) return false;
  while (plan.block_shift < 20 && 1 << plan.block_shift < p.block_tokens) ++plan.block_shift;
  if (1 << plan.block_shift != p.block_tokens || p.block_tokens < kTile) return false;
  // All blocks have columns: numbers of all are waited for.
  plan.blocks = std::min(device_traits().multiprocessors, p.hidden);
  plan.short_pieces = std::clamp(plan.blocks / p.heads, 1, kMostPieces);
  plan.long_heads = p.heads / p.kv_heads % 4 == 0 ? 4 : 1;
  plan.long_pieces = std::clamp(plan.blocks * plan.long_heads / p.heads, 1, kMostPieces);
  place_exchange(p, plan);
  return place_shared(p, plan);
}

}  // namespace
}  // namespace stay

bool layers_takes(const LayersParams& p) {
  stay::Plan plan;
  return stay::make_plan(p, plan);
}

uint64_t layers_scratch(const LayersParams& p) {
  stay::Plan plan;
  return stay::make_plan(p, plan) ? uint64_t(plan.floats) * sizeof(float) : 0;
}

cudaError_t layers(const LayersParams& p, cudaStream_t stream) {
  stay::Job job;
  job.p = p;
  if (!stay::make_plan(p, job.plan)) return cudaErrorInvalidValue;
  Shape shape;
  shape.grid = unsigned(job.plan.blocks), shape.block = stay::kThreads;
  shape.shared = job.plan.shared, shape.together = true;
  return launch(p.format == Fmt::kF16 ? stay::layers_kernel<F16> : stay::layers_kernel<BF16>, shape, stream, job);
}

}  // namespace ef::cuda
