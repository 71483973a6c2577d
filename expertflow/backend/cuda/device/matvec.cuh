// The frame of the products with few rows. Every warp has a ring of slots in shared memory: tiles (whole rows of a
// matrix, or a part of a long one) are copied there asynchronously, several ahead, in the order of a walk, so that
// weights are under way before the kernel may look at its input, and formats of any alignment arrive by 16 bytes.
// Sums: a lane's pieces in ascending order, then a butterfly over the lanes of a row.
#pragma once
#include "fast.h"
#include "float_dots.cuh"
#include "int_dots.cuh"
#include "mma.cuh"

namespace ef::cuda {

constexpr int kLanes = 32;
constexpr int kMostWarps = 16;  // of a block; a power of two
constexpr int kMostDepth = 4;   // of a ring

/// How rows of a matrix become tiles.
struct Plan {
  Fmt format = Fmt::kF32;
  int row_bytes = 0;
  int tile_rows = 1;
  int segments = 1;  ///< of a row; one where a tile's rows share the lanes
  int segment_elements = 0, segment_bytes = 0;
  int row_room = 0;  ///< bytes in a slot from row to row; row_bytes where rows are whole

  __device__ bool whole() const { return segments == 1; }
};

/// What a launch has in shared memory: matrices, then what is given here by its first byte.
struct Layout {
  int cols = 0;
  int depth = 1, slot_bytes = 0;  ///< of a warp's ring
  int split = 1;  ///< warps that share a tile, each with every split-th segment; then a warp has one tile at most
  int partial_at = 0, extra_at = 0, rows_at = 0, ring_at = 0;
};

/// One of a block's matrices, in shared memory, and the block's share of it.
struct MatrixShare {
  Weights w;
  Plan plan;
  int n = 0;  ///< rows end here
  int first_row = 0, tiles = 0;
};

/// Begins a slot; the tile follows from the 16-byte boundary before its first byte on, or, where rows are not whole,
/// each row so.
struct alignas(16) TileHead {
  int matrix;  ///< -1: the warp has no more tiles
  int row;
  int first, elements;  ///< of the row
  int rows;             ///< that exist
  int misaligned;       ///< bytes before the first row's first
  int last;             ///< of the warp's segments of these rows
  int unused;
};

// The tiles of a warp, in order. Flat: the tiles of all matrices one after the other, every warps-th. Pairs: of two
// matrices of one shape, a tile of the first and then the same of the second.
template <bool kPairs>
struct Walk {
  __device__ Walk(const MatrixShare* matrices, int count, int split) : matrices(matrices), count(count), split(split) {
    const int warp = int(threadIdx.x) / kLanes;
    tile = warp / split, part = segment = warp % split;
    seek();
  }
  __device__ void seek() {
    if constexpr (kPairs) {
      if (tile >= matrices[0].tiles) matrix = count;
    } else {
      while (matrix < count && tile >= matrices[matrix].tiles) tile -= matrices[matrix].tiles, ++matrix;
    }
  }
  __device__ bool ended() const { return matrix >= count; }
  __device__ void next() {
    segment += split;
    if (segment < matrices[matrix].plan.segments) return;
    segment = part;
    if (kPairs && matrix == 0) {
      matrix = 1;
      return;
    }
    if (kPairs) matrix = 0;
    tile += int(blockDim.x) / kLanes / split;
    seek();
  }
  const MatrixShare* matrices;
  int count, split;
  int matrix = 0, tile, part, segment;
};

// Where loads of 16 bytes may begin.
inline bool by_sixteen(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <bool kPairs>
struct Ring {
  __device__ Ring(const Layout& layout, uint8_t* memory, const MatrixShare* matrices, int count)
      : walk(matrices, count, layout.split),
        slots(memory + layout.ring_at),
        depth(layout.depth),
        slot_bytes(layout.slot_bytes),
        cols(layout.cols) {
    slots += int(threadIdx.x) / kLanes * depth * slot_bytes;
  }
  __device__ uint8_t* slot() const { return slots + at * slot_bytes; }
  __device__ void advance() { at = at + 1 == depth ? 0 : at + 1; }

  // Starts the copy of the walk's next tile to the present slot.
  __device__ void load() {
    const int lane = int(threadIdx.x) % kLanes;
    TileHead* head = reinterpret_cast<TileHead*>(slot());
    if (walk.ended()) {
      if (lane == 0) head->matrix = -1;
    } else {
      const MatrixShare& m = walk.matrices[walk.matrix];
      const Plan& plan = m.plan;
      const int row = m.first_row + walk.tile * plan.tile_rows, rows = min(plan.tile_rows, m.n - row);
      const int begin = walk.segment * plan.segment_bytes;
      const bool ends_row = walk.segment + 1 == plan.segments;
      const int bytes = ends_row ? plan.row_bytes - begin : plan.segment_bytes;
      const uint8_t* w = m.w.data ? m.w.data + int64_t(row) * plan.row_bytes + begin : nullptr;
      if (lane == 0) {
        head->matrix = walk.matrix, head->row = row;
        const int first = walk.segment * plan.segment_elements;
        head->first = first, head->elements = ends_row ? cols - first : plan.segment_elements;
        head->rows = rows, head->misaligned = int(reinterpret_cast<uintptr_t>(w) & 15),
        head->last = walk.segment + walk.split >= plan.segments;
      }
      uint8_t* to = slot() + sizeof(TileHead);
      const int runs = !w ? 0 : plan.whole() ? 1 : rows, run_bytes = plan.whole() ? rows * plan.row_bytes : bytes;
      for (int i = 0; i < runs; ++i) {
        const unsigned past = unsigned(reinterpret_cast<uintptr_t>(w) & 15);
        const uint8_t* from = w - past;
        const int units = int(past + unsigned(run_bytes) + 15) / 16;
#pragma unroll 4
        for (int u = lane; u < units; u += kLanes) copy16_async(to + 16 * u, from + 16 * u, true);
        w += plan.row_bytes, to += plan.row_room;
      }
      walk.next();
    }
    copy_async_commit();
  }
  // What needs no input: called before wait_for_earlier().
  __device__ void fill() {
    for (int i = 0; i < depth; ++i) load(), advance();
  }
  __device__ void wait() const {
    if (depth >= 4)
      copy_async_wait<3>();
    else if (depth == 3)
      copy_async_wait<2>();
    else if (depth == 2)
      copy_async_wait<1>();
    else
      copy_async_wait<0>();
    __syncwarp();
  }

  Walk<kPairs> walk;
  uint8_t* slots;
  int depth, slot_bytes, cols, at = 0;
};

// Sums v[i] over each `lanes` neighbouring lanes (at least kCount, a power of two): lane l of them gets that of
// i = l % kCount.
template <int kCount, int kMask = 1>
__device__ float fold(const float (&v)[kCount], int lanes) {
  if constexpr (kCount > 1) {
    const bool odd = threadIdx.x & kMask;
    float half[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float kept = odd ? v[2 * i + 1] : v[2 * i], given = odd ? v[2 * i] : v[2 * i + 1];
      half[i] = kept + __shfl_xor_sync(0xffffffffu, given, kMask);
    }
    return fold<kCount / 2, 2 * kMask>(half, lanes);
  } else {
    float sum = v[0];
    for (int mask = kMask; mask < lanes; mask *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    return sum;
  }
}

// Where row i of a tile begins.
__device__ inline const uint8_t* row_in_slot(const Plan& plan, const TileHead& head, const uint8_t* rows, int i) {
  const int past = plan.whole() ? head.misaligned : (head.misaligned + i * plan.row_bytes) & 15;
  return rows + i * plan.row_room + past;
}

// What meets the weights. Tiles of kQ8 give each row a share of the lanes, those of kF32 give all lanes to all rows.
template <int R>
struct MeetQ8 {
  using Rows = QuantizedRows;
  static constexpr int kRows = R, kSums = R;

  __device__ static void add(const MatrixShare& m, const TileHead& head, const uint8_t* rows, const Rows& x, int,
                             float (&acc)[kSums]) {
    const int lanes = kLanes / m.plan.tile_rows, lane = int(threadIdx.x) % kLanes, row = lane / lanes;
    add_product<R>(m.plan.format, row_in_slot(m.plan, head, rows, row), head.first, head.elements, lane % lanes, lanes,
                   x, acc);
  }
  // This lane's sum, and whose it is; false: another lane has it too.
  __device__ static bool fold_sums(const MatrixShare& m, float (&acc)[kSums], float& sum, int& row, int& r) {
    const int lanes = kLanes / m.plan.tile_rows, lane = int(threadIdx.x) % kLanes;
    sum = fold(acc, lanes);
    row = lane / lanes, r = lane % R;
    return lane % lanes < R;
  }
};

template <int R>
struct MeetF32 {
  using Rows = FloatRows;
  static constexpr int kTileRows = R <= 2 ? 2 : 4;
  static constexpr int kRows = R, kSums = kTileRows * R;

  __device__ static void add(const MatrixShare& m, const TileHead& head, const uint8_t* rows, const Rows& x, int cols,
                             float (&acc)[kSums]) {
    FloatTile<kTileRows> tile;
#pragma unroll
    for (int n = 0; n < kTileRows; ++n) {
      tile.row[n] = row_in_slot(m.plan, head, rows, n);
      const int row = head.row + min(n, head.rows - 1);
      tile.scales[n] = m.w.scales ? m.w.scales + int64_t(row / 128) * ((cols + 127) / 128) : nullptr;
    }
    tile.first = head.first, tile.elements = head.elements;
    add_product<kTileRows, R>(m.plan.format, tile, int(threadIdx.x) % kLanes, x, acc);
  }
  __device__ static bool fold_sums(const MatrixShare&, float (&acc)[kSums], float& sum, int& row, int& r) {
    const int lane = int(threadIdx.x) % kLanes;
    sum = fold(acc, kLanes);
    row = lane % kSums / R, r = lane % R;
    return lane < kSums;
  }
};

constexpr int kMostSums = 32;  // of a tile

// sink(matrix, row, r, product) for every product of the block's walks; the two calls of a pair are made by one
// thread. x_of(matrix): the activations that the matrix meets. parts: [warps, kMostSums], twice for pairs.
template <class M, bool kPairs, class XOf, class Sink>
__device__ void run(Ring<kPairs>& ring, XOf x_of, float* parts, Sink sink) {
  const MatrixShare* matrices = ring.walk.matrices;
  const int split = ring.walk.split, warp = int(threadIdx.x) / kLanes, threads = int(blockDim.x);
  float* const second_parts = parts + threads / kLanes * kMostSums;
  float acc[M::kSums] = {};
  for (;;) {
    ring.wait();
    const TileHead head = *reinterpret_cast<const TileHead*>(ring.slot());
    if (head.matrix < 0) break;
    const MatrixShare& m = matrices[head.matrix];
    M::add(m, head, ring.slot() + sizeof(TileHead), x_of(head.matrix), ring.cols, acc);
    if (head.last) {
      float sum;
      int row, r;
      const bool mine = M::fold_sums(m, acc, sum, row, r);
      if (mine && row < head.rows) {
        if (split == 1)
          sink(head.matrix, head.row + row, r, sum);
        else
          (kPairs && head.matrix == 1 ? second_parts : parts)[warp * kMostSums + row * M::kRows + r] = sum;
      }
#pragma unroll
      for (float& a : acc) a = 0;
    }
    __syncwarp();  // the slot has been read
    ring.load();
    ring.advance();
  }
  if (split == 1) return;
  __syncthreads();
  const int tile_rows = matrices[0].plan.tile_rows;
  for (int i = int(threadIdx.x); i < threads / kLanes / split * kMostSums; i += threads) {
    int tile = i / kMostSums, matrix = 0;
    const int first = tile * split * kMostSums + i % kMostSums, row = i % kMostSums / M::kRows, r = i % M::kRows;
    if constexpr (!kPairs)
      while (matrix < ring.walk.count && tile >= matrices[matrix].tiles) tile -= matrices[matrix].tiles, ++matrix;
    if (matrix == ring.walk.count || tile >= matrices[matrix].tiles || row >= tile_rows) continue;
    const int at = matrices[matrix].first_row + tile * tile_rows + row;
    if (at >= matrices[matrix].n) continue;
    const auto join = [&](const float* of) {
      float sum = 0;
      for (int part = 0; part < split; ++part) sum += of[first + part * kMostSums];
      return sum;
    };
    sink(matrix, at, r, join(parts));
    if constexpr (kPairs) sink(1, at, r, join(second_parts));
  }
}

/// The launchers' side: what a launch of the frame is about.
struct Work {
  bool integers = false;
  int rows = 1;  ///< of activations that meet a tile at once: 1, 2, 4 or 8
  int64_t cols = 0;
  int count = 1;  ///< of kinds of matrices
  Fmt format[3] = {};
  int64_t share[3] = {};  ///< rows of a matrix that one block takes
  int repeats = 1;        ///< matrices of each kind in a block
  bool pairs = false;
  int most_warps = kMostWarps;
  int x_rows = 1;            ///< of activations in shared memory
  uint64_t extra_bytes = 0;  ///< of shared memory for the kernel
  uint64_t least_bytes = 0;  ///< behind the rows of activations, where the rings are
};
/// Cuts tiles and shared memory; false where the device has too little of it.
struct Cut {
  Plan plan[3];
  Layout layout;
  int warps = 0;
  size_t shared_bytes = 0;
};
bool cut(const Work&, Cut&);
int64_t row_bytes_of(Fmt, int64_t cols);

// The least of 1, 2, 4, 8 that is not less.
inline int padded_rows(int64_t rows) { return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : 8; }
inline bool is_scalar(Fmt format) { return format <= Fmt::kF8E4M3; }
/// Whether products of this format are sums of integers.
inline bool in_integers(Meet meet, Fmt format) { return meet == Meet::kQ8 && !is_scalar(format); }

template <int kValue>
struct Count {
  static constexpr int value = kValue;
};

// kernel_of(Count<R>) is the kernel for up to R rows.
template <class KernelOf, class... Args>
cudaError_t launch_for_rows(KernelOf kernel_of, int rows, const Shape& shape, cudaStream_t stream,
                            const Args&... args) {
  switch (padded_rows(rows)) {
    case 1:
      return launch(kernel_of(Count<1>{}), shape, stream, args...);
    case 2:
      return launch(kernel_of(Count<2>{}), shape, stream, args...);
    case 4:
      return launch(kernel_of(Count<4>{}), shape, stream, args...);
    default:
      return launch(kernel_of(Count<8>{}), shape, stream, args...);
  }
}

}  // namespace ef::cuda
