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
template <class F, int kSlots>
struct Block {
  __device__ Block(const Job& job, uint8_t* memory)
      : job(job),
        p(job.p),
        plan(job.plan),
        chosen(*reinterpret_cast<Chosen*>(memory + plan.chosen)),
        of_warps(*reinterpret_cast<OfWarps*>(memory + plan.of_warps)),
        layers(reinterpret_cast<LayerOf*>(memory + plan.layers)),
        vector(reinterpret_cast<float*>(memory + plan.vector)),
        sums(reinterpret_cast<float*>(memory + plan.sums)),
        own(reinterpret_cast<float*>(memory + plan.own)),
        cos(reinterpret_cast<float*>(memory + plan.turn)),
        table(reinterpret_cast<const uint8_t**>(memory + plan.table)),
        scratch(static_cast<float*>(p.scratch)),
        lots(p, plan, reinterpret_cast<Lot*>(memory + plan.lots)),
        feed(p, memory, lots, chosen, layers) {}

  __device__ void run() {
    begin();
#pragma unroll 1
    for (layer = 0; layer < p.count; ++layer) {
      tag = unsigned(layer) & 1;
      if (layer + 1 == p.count) let_later_start();
#pragma unroll 1
      for (int phase = kQkv; phase < kPhases; ++phase) {
        if (phase == kO) {
          attend();
          read_layer(layer + 1);
        }
        uint4 words[2];
        const uint8_t* pointers[3];
        if (phase == kGated) fetch_early(words, pointers);
        fetch(phase);
        if (phase == kGated) {
          rate(words, pointers);
          choose();
        }
        multiply(phase);
        __syncthreads();
        finish(phase);
        // Numbers that are waited for would come behind the weights that are asked for first.
        if (phase != kQkv || !attends(site())) feed.fill();
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
    places = places_of(site());
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
    site.position = position, site.sequence = sequence, site.pieces = pieces, site.tag = tag;
    const LayerOf &here = l(), &first = p.layer[0];
    site.places = places;
    site.placed = here.block_table == first.block_table && here.window == first.window;
    return site;
  }
  __device__ void attend() {
    const auto when_ready = [&] { feed.fill(); };
    if (p.kv_type == 1)
      attend_row<KvF16>(site(), when_ready);
    else
      attend_row<KvBF16>(site(), when_ready);
  }

  // What a phase multiplies, to shared memory.
  __device__ void fetch(int phase) {
    const bool normed = phase == kQkv || phase == kGated;
    const int64_t from = phase == kQkv     ? plan.after_experts
                         : phase == kO     ? plan.attn
                         : phase == kGated ? plan.after_attn
                                           : plan.middle;
    const int n = normed ? p.hidden : phase == kO ? p.heads * p.head_dim : p.route.top_k * p.ffn;
    const float* weight = phase == kQkv ? l().attn_norm : phase == kGated ? l().ffn_norm : nullptr;
    plain = vector + n;
    factor = gather<F>({reinterpret_cast<uint32_t*>(vector), phase == kGated ? plain : nullptr}, scratch + from, n,
                       weight, phase == kQkv ? tag ^ 1 : tag, of_warps);
    if (normed) inverse = inverse_rms_of(of_warps.squares, p.hidden, phase == kQkv ? p.attn_eps : p.ffn_eps);
    factor *= normed ? inverse : 1.f;
  }

  __device__ void multiply(int phase) {
    const int begin = lots_before(phase), end = lots_before(phase + 1), chunks = lots.chunks(phase);
    const uint32_t* pairs = reinterpret_cast<const uint32_t*>(vector);
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
  // Eight lanes a result: the sums of its chunks, or experts, go round them.
  __device__ void finish(int phase) {
    constexpr int kLanesEach = 8;
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

  // What the router needs and others do not write: a row of its matrix, and where experts lie.
  __device__ void fetch_early(uint4 (&words)[2], const uint8_t* (&pointers)[3]) const {
    if (int(blockIdx.x) < p.route.experts) router_words(int(blockIdx.x), kUnit * tid, words);
    if (tid < p.route.experts) pointers_of(tid, pointers);
  }
  __device__ void router_words(int e, int c, uint4 (&out)[2]) const {
    if (c >= p.hidden) return;
    const int bytes = p.router_format == Fmt::kF32 ? 4 : 2;
    const uint4* at = reinterpret_cast<const uint4*>(l().router + (int64_t(e) * p.hidden + c) * bytes);
    out[0] = __ldg(at);
    if (bytes == 4) out[1] = __ldg(at + 1);
  }
  __device__ float router_sum(const uint4 (&words)[2], const float* x) const {
    const uint32_t all[8] = {words[0].x, words[0].y, words[0].z, words[0].w,
                             words[1].x, words[1].y, words[1].z, words[1].w};
    float w[kUnit];
    if (p.router_format == Fmt::kF32)
      for (int i = 0; i < kUnit; ++i) w[i] = __uint_as_float(all[i]);
    else if (p.router_format == Fmt::kF16)
      numbers_of(F16{}, all, w);
    else
      numbers_of(BF16{}, all, w);
    float sum = 0;
    for (int i = 0; i < kUnit; ++i) sum = fmaf(w[i], x[i], sum);
    return sum;
  }
  __device__ void pointers_of(int e, const uint8_t* (&out)[3]) const {
    const ExpertEntry* entry = l().table + e;
    out[0] = entry->gate.data, out[1] = entry->up.data, out[2] = entry->down.data;
  }
  __device__ void keep_pointers(int e, const uint8_t* const (&from)[3]) {
    for (int i = 0; i < 3; ++i) table[3 * e + i] = from[i];
  }

  // Logits of the router: experts go round the blocks.
  __device__ void rate(uint4 (&words)[2], const uint8_t* (&pointers)[3]) {
    float* const parts = sums;  // [kWarps]
    const int experts = p.route.experts;
    if (tid < experts) keep_pointers(tid, pointers);
#pragma unroll 1
    for (int e = tid + kThreads; e < experts; e += kThreads) pointers_of(e, pointers), keep_pointers(e, pointers);
#pragma unroll 1
    for (int e = int(blockIdx.x); e < experts; e += int(gridDim.x)) {
      float sum = 0;
#pragma unroll 1
      for (int c = kUnit * tid; c < p.hidden; c += kUnit * kThreads) {
        if (e != int(blockIdx.x) || c != kUnit * tid) router_words(e, c, words);
        sum += router_sum(words, plain + c);
      }
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
    if (!few) read_logits();
    __syncthreads();
    if (warp == 0) {
      Choice mine;
      if (!few)
        mine = route_any(rules);
      else if (rules.experts <= kLanes * 4)
        mine = route_few<4>(rules, scratch + plan.logits, tag, lane);
      else
        mine = route_few<kRouted>(rules, scratch + plan.logits, tag, lane);
      if (lane < rules.top_k) {
        const bool exists = unsigned(mine.id) < unsigned(rules.experts);
        for (int i = 0; i < 3; ++i) chosen.matrix[3 * lane + i] = exists ? table[3 * mine.id + i] : nullptr;
        chosen.weight[lane] = exists ? mine.weight : 0.f;
      }
    }
    __syncthreads();
    feed.knows(layer);
  }
  __device__ void read_logits() {
#pragma unroll 1
    for (int e = tid; e < p.route.experts; e += kThreads) sums[e] = get(scratch + plan.logits + e, tag);
  }
  __device__ Choice route_any(RouteParams& rules) {
    rules.ids = chosen.id, rules.weights = chosen.weight;
    routing::route_row(rules, 0, sums, sums + rules.experts, lane);
    return lane < rules.top_k ? Choice{chosen.id[lane], chosen.weight[lane]} : Choice{};
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
  LayerOf* layers;  // [2]: this one and the next
  float *vector, *sums, *own, *cos;
  float* plain = nullptr;  // in vector, for the router
  const uint8_t** table;
  float* scratch;
  Lots lots;
  Feed<F, kSlots> feed;
  const int tid = int(threadIdx.x), lane = tid % kLanes, warp = tid / kLanes;
  int layer = 0, position = 0, sequence = 0;
  Pieces pieces;
  Places places;
  unsigned tag = 0;
  // What sums of products are to be multiplied by, and of that what normalises.
  float factor = 1.f, inverse = 1.f;
};

template <class F, int kSlots>
__global__ void __launch_bounds__(kThreads, 1) layers_kernel(const __grid_constant__ Job job) {
  EF_DYNAMIC_SHARED(uint8_t, memory);
  Block<F, kSlots>(job, memory).run();
}

// ---- How it is cut ----

constexpr int kDeep = 3, kShallow = 2;  // slots of a warp

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

bool place_shared(const LayersParams& p, int slots, Plan& plan) {
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
  int64_t at = int64_t(kWarps) * slots * kLotBytes;
  const auto take = [&](int& place, int64_t bytes) { place = int(at), at += (bytes + 15) / 16 * 16; };
  take(plan.chosen, sizeof(Chosen));
  take(plan.of_warps, sizeof(OfWarps));
  take(plan.layers, 2 * sizeof(LayerOf));
  take(plan.lots, kWarps * int64_t(sizeof(Lot)) * plan.most_lots);
  take(plan.vector,
       4 * std::max<int64_t>({2 * int64_t(p.hidden), q, top_k * p.ffn, attend_floats(plan.long_heads, p.head_dim)}));
  take(plan.sums, 4 * std::max<int64_t>({qkv * in, columns * o, 2 * gated * in, top_k * columns * down, kWarps,
                                         p.route.experts + routing::row_floats(p.route)}));
  take(plan.table, 24 * int64_t(p.route.experts));
  take(plan.own, 4 * columns);
  take(plan.turn, 4 * p.rotary);
  plan.slots = slots, plan.shared = size_t(at);
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
  if (1 << plan.block_shift != p.block_tokens) return false;
  // All blocks have columns: numbers of all are waited for.
  plan.blocks = std::min(device_traits().multiprocessors, p.hidden);
  plan.short_pieces = std::clamp(plan.blocks / p.heads, 1, kMostPieces);
  plan.long_heads = p.heads / p.kv_heads % 4 == 0 ? 4 : 1;
  plan.long_pieces = std::clamp(plan.blocks * plan.long_heads / p.heads, 1, kMostPieces);
  place_exchange(p, plan);
  return place_shared(p, kDeep, plan) || place_shared(p, kShallow, plan);
}

template <class F>
cudaError_t start(const Job& job, const Shape& shape, cudaStream_t stream) {
  return launch(job.plan.slots == kDeep ? layers_kernel<F, kDeep> : layers_kernel<F, kShallow>, shape, stream, job);
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
  return p.format == Fmt::kF16 ? stay::start<F16>(job, shape, stream) : stay::start<BF16>(job, shape, stream);
}

}  // namespace ef::cuda
