// What the launchers of the kernels take: plain numbers and device pointers, no type of the engine. Every launcher
// queues its kernels on the stream and returns the launch's error. Shapes as in backend.h; floats are float32.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace ef::cuda {

/// In the order of ef::Format, as far as there is arithmetic (cuda_ops.cpp asserts it).
enum class Fmt : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  kIQ4NL,
  kIQ4XS,
  kMXFP4,
  kCount
};

/// A matrix in storage format, row after row.
struct Weights {
  const uint8_t* data = nullptr;
  const float* scales = nullptr;  ///< kF8E4M3: a factor for 128 x 128 weights, or null
  const float* bias = nullptr;    ///< [rows] or null
};

/// Products of one expert: up to two matrices of equal shape, their outputs side by side.
struct Group {
  Weights w[2];
};
/// Up to kTileRows rows of a group: assignments [first, first + rows) of the call's order.
struct Tile {
  int32_t group = 0, first = 0, rows = 0;
};
constexpr int kTileRows = 8;  // rows of activations that share one pass over the weights

/// out[r, i] = x[r] * w[i]^T + bias[i]. Without tiles: one group, rows 0 .. rows - 1, kTileRows in a tile.
struct MatmulParams {
  Fmt format = Fmt::kF32;
  int64_t n = 0, cols = 0;  ///< rows of a matrix, and their length
  int matrices = 1;         ///< of a group; outputs of the second begin at column n
  int first_matrix = 0;     ///< of a group
  Group single;             ///< without tiles
  const Group* groups = nullptr;
  const Tile* tiles = nullptr;
  int64_t tile_count = 0;
  int most_rows = kTileRows;  ///< of any tile
  int64_t rows = 0;           ///< without tiles
  /// Row of x and of out for row i of the order: null means i.
  const int32_t *x_row = nullptr, *out_row = nullptr;
  int x_divisor = 1;  ///< x row = x_row / x_divisor
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  /// Products apart along the third axis (head_linear): matrices of n rows each, one after the other.
  int heads = 1;
  int64_t x_head_stride = 0, out_head_stride = 0;
};
cudaError_t matmul(const MatmulParams&, cudaStream_t);

cudaError_t embed(Fmt, const Weights& table, int64_t cols, const int32_t* ids, int64_t n, float scale, float* out,
                  cudaStream_t);

struct NormParams {
  bool centred = false;  ///< layer norm: the mean is taken away
  int64_t rows = 0, width = 0;
  float eps = 0;
  const float *weight = nullptr, *bias = nullptr, *x = nullptr;
  float* out = nullptr;
};
cudaError_t norm(const NormParams&, cudaStream_t);

struct RopeParams {
  int64_t rows = 0;
  int heads = 0, head_dim = 0, offset = 0, rotary = 0;
  int64_t row_stride = 0;
  bool interleaved = false;
  const float *cos = nullptr, *sin = nullptr;
  float* x = nullptr;
};
cudaError_t rope(const RopeParams&, cudaStream_t);

/// type 0: float32, 1: float16, 2: bfloat16.
struct KvParams {
  int type = 0;
  int block_tokens = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
  uint8_t *k = nullptr, *v = nullptr;  ///< v null: the value is the first v_dim elements of the key
  int64_t rows = 0;
  const int32_t *position = nullptr, *sequence = nullptr, *block_table = nullptr;
  int max_blocks = 0;
};
cudaError_t store_kv(const KvParams&, const float* k, const float* v, cudaStream_t);

struct AttentionParams {
  KvParams kv;
  int heads = 0, window = 0;
  float scale = 1.f;
  const float *sinks = nullptr, *q = nullptr;
  float* out = nullptr;
  int64_t reach = 0;         ///< no row's position is this or more
  float* scratch = nullptr;  ///< attention_scratch_floats() of the rows of this launch
};
/// Positions that one block of threads sums; sums of such pieces are joined in ascending order.
constexpr int kSplit = 256;
int64_t attention_scratch_floats(int64_t rows, int heads, int v_dim, int64_t reach);
cudaError_t attention(const AttentionParams&, cudaStream_t);

enum class Score : uint8_t { kSoftmax, kSigmoid, kSoftmaxAfterTopK, kSparsemixer };
struct RouteParams {
  Score score = Score::kSoftmax;
  int64_t rows = 0;
  int experts = 0, top_k = 0, groups = 1, top_groups = 1;
  bool sum_of_top2 = false, renormalise = false;
  float renormalise_eps = 0, scale = 1, jitter_eps = 0;
  const float *logits = nullptr, *selection_bias = nullptr;
  int32_t* ids = nullptr;
  float* weights = nullptr;
};
/// Shared memory of a row; what exceeds the device's 48 KiB is refused by the backend.
uint64_t route_shared_bytes(const RouteParams&);
cudaError_t route(const RouteParams&, cudaStream_t);

constexpr int kMostTop = 64;
/// The `top` largest numbers of each row, falling (lower index first among equals; NaN above all).
struct TopParams {
  int64_t rows = 0, width = 0;  ///< width >= top
  int top = 0;                  ///< at most kMostTop
  const float* x = nullptr;
  int32_t* ids = nullptr;   ///< [rows, top]
  float* values = nullptr;  ///< [rows, top]
  void* scratch = nullptr;
};
uint64_t top_scratch(const TopParams&);
cudaError_t top(const TopParams&, cudaStream_t);

enum class Act : uint8_t { kSilu, kGelu, kGeluTanh, kClampedSwiglu };
struct ActivationParams {
  Act kind = Act::kSilu;
  float alpha = 0, limit = 0;
  int64_t rows = 0, width = 0;
  int64_t in_stride = 0, out_stride = 0;  ///< floats from row to row of gate and up, and of out
  const float *gate = nullptr, *up = nullptr;
  float* out = nullptr;
};
cudaError_t activation(const ActivationParams&, cudaStream_t);

cudaError_t combine(const float* expert_out, const float* weights, int64_t rows, int64_t hidden, int top_k, float* out,
                    cudaStream_t);
cudaError_t add_scaled(float* x, const float* y, float scale, int64_t n, cudaStream_t);
cudaError_t gated_add(float* x, const float* y, const float* gate, int64_t rows, int64_t width, cudaStream_t);
cudaError_t scale(float* x, float factor, int64_t n, cudaStream_t);
cudaError_t clamp(float* x, float low, float high, int64_t n, cudaStream_t);
cudaError_t copy_2d(float* dst, int64_t dst_stride, const float* src, int64_t src_stride, int64_t width, int64_t rows,
                    cudaStream_t);

/// Reads of zeros, so many bytes as whole rounds of all multiprocessors take, at most `bytes`. sink: 4 bytes.
struct ProbeRead {
  uint64_t bytes;
  cudaError_t error;
};
ProbeRead probe_read(const void* data, uint64_t bytes, void* sink, cudaStream_t);
/// Products of 16-bit matrices, with float32 sums.
struct ProbeProducts {
  double operations;
  cudaError_t error;
};
ProbeProducts probe_products(int64_t rounds, void* sink, cudaStream_t);
/// A kernel that does nothing.
cudaError_t nothing(cudaStream_t);

}  // namespace ef::cuda
