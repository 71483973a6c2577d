// What the kernel of layers.cu is made of: how the work is cut, and the weights that every warp streams ahead.
//
// A lot is what a warp multiplies at once: up to sixteen rows by 256 columns. A warp's lots are one sequence over all
// phases and layers, and its slots in shared memory hold the next ones, so that the memory stays busy while blocks wait
// for each other. Only lots of experts have to wait, until the layer's choice is known.
#pragma once
#include "float_dots.cuh"
#include "layers.h"
#include "layers_exchange.cuh"

namespace ef::cuda::stay {

constexpr int kUnit = 8;                     // columns: 16 bytes
constexpr int kHalf = 8, kRows = 2 * kHalf;  // rows of a lot
constexpr int kChunk = kLanes * kUnit;       // columns of a lot
constexpr int kRowBytes = 2 * kChunk, kLotBytes = kRows * kRowBytes;
constexpr int kMostTopK = 32, kMostHeadDim = 128, kMostPieces = 32;
constexpr int kSlots = 2;    // of a warp: more would be a queue that what blocks exchange waits behind
constexpr int kPiece = 256;  // positions that a block takes before others share a head

enum Phase : int { kQkv, kO, kGated, kDown, kPhases };

struct Plan {
  int blocks = 0;
  int block_shift = 0;  ///< block_tokens is two to that
  int short_pieces = 1, long_heads = 1, long_pieces = 1;
  // Floats from the beginning of scratch: what blocks exchange.
  int64_t qkv = 0, attn = 0, piece_sums = 0, piece_totals = 0, after_attn = 0, logits = 0, middle = 0,
          after_experts = 0;
  int64_t floats = 0;
  int most_lots = 0;  ///< of a warp
  // Bytes from the beginning of shared memory, behind the slots.
  int chosen = 0, of_warps = 0, first = 0, layers = 0, lots = 0, vector = 0, sums = 0, table = 0, own = 0, turn = 0;
  size_t shared = 0;
};

struct Job {
  LayersParams p;
  Plan plan;
};

struct Chosen {
  const uint8_t* matrix[3 * kMostTopK];  ///< gate, up and down of each rank; null: there is no such expert
  int32_t id[kMostTopK];
  float weight[kMostTopK];
};

struct Share {
  int first = 0, end = 0;
  __host__ __device__ int count() const { return end - first; }
};
__device__ inline Share share_of(int n) {
  return {int(int64_t(n) * blockIdx.x / gridDim.x), int(int64_t(n) * (blockIdx.x + 1) / gridDim.x)};
}

/// In a warp's list of those of a layer.
struct alignas(16) Lot {
  uint32_t offset;       ///< of the first row's columns from the matrix's first byte, by 16 bytes
  uint16_t base, chunk;  ///< of its first row among the block's of the phase; which columns
  uint16_t source;       ///< 0 to 3 as LayerOf::matrix, or gate, up and down of a rank, as Chosen::matrix
  uint8_t low, high;     ///< rows of the first and the second half; of gate and of the same of up
  uint8_t units;         ///< of 16 bytes, of a row
};
static_assert(sizeof(Lot) == 16);

// A warp's lots of a layer, and what the block's share of the phases is.
struct Lots {
  __device__ Lots(const LayersParams& p, const Plan& plan, Lot* all) : p(p), warp(int(threadIdx.x) / kLanes) {
    list = all + warp * plan.most_lots;
    q = p.heads * p.head_dim, kv = p.kv_heads * p.head_dim;
    qkv = share_of(q + 2 * kv), gated = share_of(p.route.top_k * p.ffn), columns = share_of(p.hidden);
    if (threadIdx.x % kLanes == 0) make();
    __syncwarp();
  }
  __device__ int cols(int phase) const { return phase == kO ? q : phase == kDown ? p.ffn : p.hidden; }
  __device__ int chunks(int phase) const { return (cols(phase) + kChunk - 1) / kChunk; }
  // A row of q, k and v one behind the other: which matrix, and where it ends.
  __device__ int matrix_of(int row, int& begin, int& end) const {
    const int m = row < q ? 0 : row < q + kv ? 1 : 2;
    begin = m == 0 ? 0 : q + (m - 1) * kv, end = q + m * kv;
    return m;
  }

  __device__ void make() {
    int n = 0, begin, end;
    first[kQkv] = 0, turn = 0;
    for (int row = qkv.first; row < qkv.end;) {
      const int m = matrix_of(row, begin, end), count = min(min(qkv.end, end) - row, kRows);
      n = add(n, kQkv, row - begin, row - qkv.first, m, min(count, kHalf), max(count - kHalf, 0));
      row += count;
    }
    first[kO] = n, turn = 0;
    for (int row = columns.first; row < columns.end; row += kRows) {
      const int count = min(columns.end - row, kRows);
      n = add(n, kO, row, row - columns.first, 3, min(count, kHalf), max(count - kHalf, 0));
    }
    first[kGated] = n, turn = 0;
    for (int row = gated.first; row < gated.end;) {
      const int k = row / p.ffn, count = min(min(gated.end, (k + 1) * p.ffn) - row, kHalf);
      n = add(n, kGated, row - k * p.ffn, row - gated.first, 3 * k, count, count);
      row += count;
    }
    first[kDown] = n, turn = 0;
    for (int k = 0; k < p.route.top_k; ++k)
      for (int row = columns.first; row < columns.end; row += kRows) {
        const int count = min(columns.end - row, kRows);
        n = add(n, kDown, row, k * columns.count() + row - columns.first, 3 * k + 2, min(count, kHalf),
                max(count - kHalf, 0));
      }
    first[kPhases] = n;
  }
  // Of lots of these rows, a chunk of columns each, every kWarps-th is this warp's.
  __device__ int add(int n, int phase, int row, int base, int source, int low, int high) {
    const int units = cols(phase) / kUnit, all = chunks(phase);
    for (int chunk = (warp + kWarps - turn) % kWarps; chunk < all; chunk += kWarps)
      list[n++] = {uint32_t(row) * uint32_t(units) + uint32_t(chunk * kLanes),
                   uint16_t(base),
                   uint16_t(chunk),
                   uint16_t(source),
                   uint8_t(low),
                   uint8_t(high),
                   uint8_t(min(units - chunk * kLanes, kLanes))};
    turn = (turn + all) % kWarps;
    return n;
  }

  const LayersParams& p;
  int warp;
  Lot* list;
  int q, kv, turn = 0;
  Share qkv, gated, columns;
  int first[kPhases + 1];  // of the list
};

// The warp's lots on their way through its slots. In a slot, the 16 bytes of columns 8 u to 8 u + 7 of row r are at
// 32 r + (u ^ r % 8) of them: eight rows then lie in different banks.
template <class F>
struct Feed {
  using H = typename Half<F>::Of;

  /// layers: this one and the next, by turns.
  __device__ Feed(const LayersParams& p, uint8_t* all, const Lots& lots, const Chosen& chosen, const LayerOf* layers)
      : p(p), chosen(chosen), layers(layers), lane(int(threadIdx.x) % kLanes), list(lots.list) {
    slots = all + int(threadIdx.x) / kLanes * kSlots * kLotBytes;
    // A warp's lane 0 has counted.
#pragma unroll
    for (int i = 0; i <= kPhases; ++i) first[i] = __shfl_sync(kWholeWarp, lots.first[i], 0);
    dense_o = first[kO], routed = first[kGated], down = first[kDown], end = first[kPhases];
  }

  // Starts a copy to the slot: of what follows, or of nothing at the end, and where a choice is not known yet.
  __device__ void issue(int slot) {
    if (next_lot == end) next_lot = 0, ++layer;
    if (layer >= p.count || (next_lot >= routed && known < layer)) {
      ++empty;
    } else {
      const int i = next_lot++;
      const Lot lot = list[i];
      const bool gated = i >= routed && i < down;
      const uint32_t row_bytes = 2 * (i >= down ? p.ffn : i >= dense_o && i < routed ? p.heads * p.head_dim : p.hidden);
      const int64_t from = int64_t(lot.offset) * 16 + lane * 16;
      const uint8_t* a = i < routed ? layers[layer % 2].matrix[lot.source] : chosen.matrix[lot.source];
      const uint8_t* b = gated ? chosen.matrix[lot.source + 1] : a + kHalf * row_bytes;
      const bool mine = a && lane < lot.units;
      uint8_t* to = slots + slot * kLotBytes;
      copy_rows(to, a + from, mine ? lot.low : 0, row_bytes);
      copy_rows(to + kHalf * kRowBytes, b + from, mine ? lot.high : 0, row_bytes);
    }
    copy_async_commit();
  }
  __device__ void copy_rows(uint8_t* to, const uint8_t* from, int count, uint32_t row_bytes) const {
#pragma unroll
    for (int i = 0; i < kHalf; ++i)
      copy16_async_where(to + (16 * lane ^ 16 * i) + i * kRowBytes, from + uint64_t(row_bytes) * uint32_t(i),
                         i < count);
  }
  // Slots that were left empty, as far as it is known what follows.
  __device__ void fill() {
    const int some = empty;
    empty = 0;
#pragma unroll 1
    for (int i = kSlots - some; i < kSlots; ++i) issue(at + i < kSlots ? at + i : at + i - kSlots);
  }
  __device__ void knows(int of_layer) { known = of_layer; }

  // Sums of the next lot's rows lane / 4 and 8 + lane / 4 times the vector's columns, at all lanes. As products of
  // matrices: the rows by two columns, the high and the low parts of the vector. more: whether what follows is wanted
  // in its place at once.
  __device__ float2 next(const Lot& lot, const uint32_t* vector, bool more) {
    copy_async_wait<kSlots - 1>();
    __syncwarp();
    const int row = lane / 8 % 2 * 8 + lane % 8, half = lane / 16, part = lane / 4 % 2, pair = lane % 4;
    const uint8_t* slot = slots + at * kLotBytes + row * kRowBytes;
    const uint32_t* x = vector + lot.chunk * kChunk + part * 8 + pair * 2;
    const int turned = (half ^ (row & 7)) * 16;
    float sum[4][4] = {};
    const int steps = lot.units / 2;
    if (steps == kLanes / 2) {
#pragma unroll
      for (int s = 0; s < kLanes / 2; ++s) step(slot, x, s, turned, sum[s % 4]);
    } else {
#pragma unroll 1
      for (int s = 0; s < steps; ++s) step(slot, x, s, turned, sum[0]);
    }
    __syncwarp();  // all have read
    if (more) {
      issue(at);
    } else {
      ++empty;
      copy_async_commit();
    }
    at = at + 1 == kSlots ? 0 : at + 1;
    float all[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) all[i] = (sum[0][i] + sum[1][i]) + (sum[2][i] + sum[3][i]);
    return make_float2(all[0] + all[1], all[2] + all[3]);
  }
  // turned: 16 ((2 s + half) ^ row % 8) without the bits of s, so that four addresses do for all steps.
  static __device__ void step(const uint8_t* slot, const uint32_t* x, int s, int turned, float (&sum)[4]) {
    uint32_t a[4];
    ldmatrix_x4(a, slot + (32 * (s % 4) ^ turned) + 128 * (s / 4));
    const uint2 b = *reinterpret_cast<const uint2*>(x + 16 * s);
    H::mma(sum, a, {b.x, b.y});
  }
  /// Whether lots of the phase are still to be copied.
  __device__ bool wants(int of_layer, int phase_end) const { return layer == of_layer && next_lot < phase_end; }

  const LayersParams& p;
  const Chosen& chosen;
  const LayerOf* layers;
  int lane;
  const Lot* list;
  uint8_t* slots;
  int first[kPhases + 1];  // of the list
  int dense_o, routed, down, end;
  // What is copied next; the slot that is read next; slots that are empty, the last ones; the last layer whose choices
  // are known.
  int layer = 0, next_lot = 0, at = 0, empty = kSlots, known = -1;
};

}  // namespace ef::cuda::stay
