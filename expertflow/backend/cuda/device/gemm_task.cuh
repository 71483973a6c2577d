// What one launch of a product on tensor cores computes, and what the launchers share.
#pragma once
#include "carve.cuh"
#include "fast.h"
#include "narrow.cuh"

namespace ef::cuda {

constexpr int kGemmWarps = 4, kGemmThreads = 32 * kGemmWarps;
constexpr int kGemmOutputs = 32 * kGemmWarps;  // of a block
constexpr int kStepColumns = 64, kStepChunks = kStepColumns / 8;
constexpr int kStages = 3;  // steps of activations in shared memory

// Whether this architecture multiplies bfloat16; elsewhere those weights become halves. Device code alone may ask.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool kBrainProducts = false;
#else
constexpr bool kBrainProducts = true;
#endif

enum class Matrix : uint8_t { kGate, kUp, kDown };

/// One matrix of a launch. Where experts are tiled, its weights are those of the tile's expert.
struct GemmPart {
  Weights w;
  Matrix matrix = Matrix::kGate;
  int64_t n = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int first_block = 0;  ///< along the grid's first axis
};

/// What one launch computes: up to three matrices of one format and width.
struct GemmTask {
  const uint4* x = nullptr;       ///< narrow rows, `chunks` of 16 bytes each
  const float* factor = nullptr;  ///< of a narrow row: what its sums are multiplied by
  int64_t chunks = 0, cols = 0;
  int steps = 0;
  int64_t rows = 0;
  int tile_rows = 0;  ///< 16, 32, 64 or 128; 8, 16 or 32 with `few`
  bool few = false;   ///< the kernel of gemm_few.cuh, for which x is in its natural order
  /// Tiles of experts' rows: places of an order. Null: one matrix for all rows.
  const Tile* tiles = nullptr;
  const int32_t* tile_count = nullptr;
  int64_t most_tiles = 0;
  const ExpertEntry* table = nullptr;
  int experts = 0;  ///< of the table
  /// Tiles and what they are about were complete before the kernel just ahead began: they, and weights, may be read
  /// before it has ended.
  bool settled = false;
  /// Row of x and of out for a place of the order: null means the place itself.
  const int32_t *x_row = nullptr, *out_row = nullptr;
  int x_divisor = 1;
  int count = 0;
  GemmPart part[3];
  /// The one part is gate, and what is stored is its activation with up of the same neurons: where few_pairs() says so.
  bool pairs = false;
  ActivationParams activation;
  bool add = false;  ///< to what is in out, times add_scale
  float add_scale = 1.f;
};

/// What a block of the grid works on: tile blockIdx.y (no rows: there is none), and the part that blockIdx.x is in.
struct GemmBlock {
  __device__ explicit GemmBlock(const GemmTask& p) {
    if (p.tiles) {
      // Not from this multiprocessor's cache: the kernel that wrote them may have ended after this one began.
      const int32_t* at = reinterpret_cast<const int32_t*>(p.tiles + blockIdx.y);
      const int64_t tiles = __ldcg(p.tile_count);
      tile = {__ldcg(at), __ldcg(at + 1), __ldcg(at + 2)};
      if (int64_t(blockIdx.y) >= tiles) tile.rows = 0;
    } else {
      tile.first = int32_t(blockIdx.y) * p.tile_rows;
      tile.rows = int32_t(min(int64_t(p.tile_rows), p.rows - tile.first));
    }
    while (index + 1 < p.count && int(blockIdx.x) >= p.part[index + 1].first_block) ++index;
  }
  /// Of the part; with a table, the tile's expert's.
  __device__ Weights weights(const GemmTask& p) const {
    const GemmPart& part = p.part[index];
    if (!p.table) return part.w;
    const ExpertEntry& entry = p.table[tile.group];
    return part.matrix == Matrix::kGate ? entry.gate : part.matrix == Matrix::kUp ? entry.up : entry.down;
  }
  Tile tile;
  int index = 0;
};
/// Row of x that place i of a tile multiplies; beyond its rows, that of its last.
__device__ inline int64_t x_row_at(const GemmTask& p, const Tile& tile, int i) {
  const int64_t place = tile.first + min(i, tile.rows - 1);
  return p.x_row ? int64_t(p.x_row[place] / p.x_divisor) : place;
}

cudaError_t gemm_as(Fmt, const GemmTask&, cudaStream_t);
cudaError_t gemm_scalar(Fmt, const GemmTask&, cudaStream_t);
cudaError_t gemm_block32(Fmt, const GemmTask&, cudaStream_t);
cudaError_t gemm_block256(Fmt, const GemmTask&, cudaStream_t);

/// routed_gemm with tiles of 8, 16, 32, 64 or 128 rows.
cudaError_t routed_gemm_tiled(const RoutedParams&, int tile_rows, cudaStream_t, RankSums* left = nullptr);

/// Blocks along the grid's first axis, each of so many outputs of one part.
inline int64_t blocks_of(const GemmTask& task, int outputs) {
  int64_t blocks = 0;
  for (int i = 0; i < task.count; ++i) blocks += (task.part[i].n + outputs - 1) / outputs;
  return blocks;
}
/// Says where each part's blocks begin.
void place_parts(GemmTask&, int outputs);
inline void add_part(GemmTask& task, const GemmPart& part) { task.part[task.count++] = part; }
void set_input(GemmTask&, const NarrowRows&, int64_t cols);

bool fits(int64_t rows, int64_t cols);  ///< whether a launch can count the chunks of such rows
NarrowRows carve_narrow(Carve&, int64_t rows, int64_t cols, bool natural);
/// Whether the kernel for few rows makes pairs of this format in tiles of so many rows.
bool few_pairs(Fmt, int tile_rows);
/// Rows of a tile of the kernel for few rows: 8, 16 or 32.
inline int few_tile_rows(int64_t rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : 32; }
constexpr int64_t kMostFewRows = 32;

}  // namespace ef::cuda
