// Launchers of the fast kernels: rounded activations, tensor cores, sums split by shape. Results depend on the batch in
// their last bits; the kernels of params.h, which do not, are the reference for these. Shapes as in backend.h. All
// memory is the device's; nothing here waits, allocates, or reads what a kernel wrote, so that a stream can record it.
// Weights begin at 16-byte boundaries, and are read up to the next such boundary behind their end.
#pragma once
#include "params.h"

namespace ef::cuda {

/// What meets block formats of 8 bits and fewer in products of few rows: numbers rounded to 8 bits with a scale for 32
/// (integer sums), or float32.
enum class Meet : uint8_t { kQ8, kF32 };

/// One of the matrices that share their input.
struct Product {
  Fmt format = Fmt::kF32;
  Weights w;
  int64_t n = 0;         ///< rows of the matrix
  float* out = nullptr;  ///< [rows, n]
};

/// The input of a product: x, or norm(x) where weight is given. normed: where norm(x) goes as well, or null.
struct Input {
  const float* x = nullptr;
  int64_t stride = 0;  ///< floats from row to row
  const float *norm_weight = nullptr, *norm_bias = nullptr;
  bool centred = false;
  float eps = 0;
  float* normed = nullptr;  ///< [rows, cols]
};

constexpr int kMatvecRows = 8;  // at most, in one launch of matvec
/// out[m][r] = w[m] * input[r] + bias for up to three matrices of one width. With add_to (one matrix): add_to[r] +=
/// add_scale * (w * input[r] + bias), out is not written.
struct MatvecParams {
  Meet meet = Meet::kQ8;
  int rows = 0;
  int64_t cols = 0;
  Input in;
  int count = 1;
  Product product[3];
  float* add_to = nullptr;
  float add_scale = 1.f;
};
cudaError_t matvec(const MatvecParams&, cudaStream_t);

/// out[r] = act(gate * in[r], up * in[r]): [rows, n]. Formats may differ. rows <= kMatvecRows.
struct GatedParams {
  Meet meet = Meet::kQ8;
  int rows = 0;
  int64_t cols = 0, n = 0;
  Input in;
  Fmt gate_format = Fmt::kF32, up_format = Fmt::kF32;
  Weights gate, up;
  ActivationParams activation;  ///< kind, alpha and limit are read
  float* out = nullptr;
};
cudaError_t gated_matvec(const GatedParams&, cudaStream_t);

/// The router's product and choice, rows <= kMatvecRows: logits = router * in + bias, then as route(). `arrived`: a
/// counter that is zero before and after.
struct RouteLinearParams {
  Input in;
  int64_t cols = 0;
  Fmt format = Fmt::kF32;
  Weights router;
  float* logits = nullptr;  ///< [rows, experts]
  RouteParams route;        ///< logits and rows are those here
  unsigned* arrived = nullptr;
};
cudaError_t route_linear(const RouteLinearParams&, cudaStream_t);
/// The same for more rows, up to kRouteRows, where route_rows_takes() says so: an RMS norm, 16- or 32-bit floats, rows
/// that begin at multiples of 16 bytes. `arrived`: route_rows_counters() of them.
constexpr int64_t kRouteRows = 64;
bool route_rows_takes(const RouteLinearParams&);
int64_t route_rows_counters(int64_t rows);
cudaError_t route_rows(const RouteLinearParams&, cudaStream_t);

/// An expert's matrices where they lie.
struct ExpertEntry {
  Weights gate, up, down;
};
/// out[r] = sum over ranks k, in rank order, of weights[r, k] * expert ids[r, k] of x[r]; or add_to[r] += add_scale *
/// that sum, and out is not written. Choices stay on the device.
struct RoutedParams {
  Meet meet = Meet::kQ8;
  int64_t rows = 0, hidden = 0, ffn = 0;
  int experts = 0, top_k = 0;
  Fmt gate_format = Fmt::kF32, up_format = Fmt::kF32, down_format = Fmt::kF32;
  const ExpertEntry* table = nullptr;  ///< [experts], in device memory
  ActivationParams activation;         ///< kind, alpha and limit are read
  const int32_t* ids = nullptr;        ///< [rows, top_k]
  const float* weights = nullptr;      ///< [rows, top_k]
  const float* x = nullptr;            ///< [rows, hidden]
  float* out = nullptr;                ///< [rows, hidden]
  float* add_to = nullptr;             ///< [rows, hidden]
  float add_scale = 1.f;
  void* scratch = nullptr;  ///< 256-byte aligned
};
/// Matrix-vector products: for few rows. Scratch in bytes.
uint64_t routed_matvec_scratch(const RoutedParams&);
cudaError_t routed_matvec(const RoutedParams&, cudaStream_t);
/// Tensor cores over tiles of each expert's rows: for many rows. Choices are grouped on the device.
uint64_t routed_gemm_scratch(const RoutedParams&);
/// The last of it, the sums over ranks, may be left to the op behind it, which then has the rows at hand: where `left`
/// is given and gets `down`.
struct RankSums {
  RoutedParams p;
  const float* down = nullptr;  ///< [assignments, hidden], in scratch
  uint64_t room = 0;            ///< bytes of scratch before it, free by now
};
cudaError_t routed_gemm(const RoutedParams&, cudaStream_t, RankSums* left = nullptr);
cudaError_t rank_sums(const RankSums&, cudaStream_t);

/// out[r] = w * x[r] + bias, or add_to[r] += add_scale * that: any number of rows, tensor cores. Matrices that share
/// their input go together: x is rounded once, and narrow matrices fill the device. Both factors meet as bfloat16 where
/// the weights are stored so, else as float16: rows of x scaled by powers of two of their own, weights as they are, up
/// to 65504 in F16 and 1023 in the other formats.
struct GemmParams {
  Fmt format = Fmt::kF32;
  Weights w;
  int64_t rows = 0, n = 0, cols = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  const NormParams* norm = nullptr;  ///< of x, on the host: what is multiplied are its rows, and x is its result
  const RankSums* sums = nullptr;  ///< on the host; where gemm_takes_sums(): they are made first, and scratch is theirs
  float* out = nullptr;
  int64_t out_stride = 0;
  float* add_to = nullptr;  ///< [rows, n], rows out_stride apart
  float add_scale = 1.f;
  int more = 0;  ///< without add_to: up to two matrices more
  Product also[2];
  void* scratch = nullptr;  ///< 256-byte aligned
};
uint64_t gemm_scratch(const GemmParams&);
cudaError_t gemm(const GemmParams&, cudaStream_t);
/// Whether p.norm is of p.sums, and one launch makes the sums, normalises and narrows them.
bool gemm_takes_sums(const GemmParams&);
/// The same for one matrix in float32 throughout; no scratch.
cudaError_t gemm_exact(const GemmParams&, cudaStream_t);

/// Heads' norms, clipping and rotary embedding, keys and values to the cache, then attention; as the ops of params.h
/// one after the other. Rows of one sequence that are many (a chunk of a prompt) and single rows of others are best
/// given in calls of their own. q, k, v and out begin at multiples of 16 bytes.
struct AttendParams {
  KvParams kv;
  int heads = 0, window = 0;
  float scale = 1.f;
  const float* sinks = nullptr;
  float *q = nullptr, *k = nullptr;  ///< [rows, heads, k_dim], [rows, kv_heads, k_dim]; contents afterwards undefined
  const float* v = nullptr;          ///< [rows, kv_heads, v_dim] or null
  const float *q_norm = nullptr, *k_norm = nullptr;  ///< RMS norm weights, or null; of a head, or of all heads
  bool norm_whole = false;                           ///< over all heads at once
  float norm_eps = 0;
  float clip = 0;                   ///< q, k and v are held to +-clip after the norms; 0: not
  int rotary = 0, rope_offset = 0;  ///< 0: no rotary embedding
  bool interleaved = false;
  const float *cos = nullptr, *sin = nullptr;  ///< [rows, rotary / 2]
  float* out = nullptr;                        ///< [rows, heads, v_dim]
  int64_t reach = 0;                           ///< no row's position is this or more
  bool one_row_each = false;                   ///< no two rows are of one sequence
  /// Positions, tables, and keys and values of earlier positions were complete before a kernel between them and this
  /// one began without starting early (Start::kAfter): they may be read before the kernel just ahead has ended.
  bool settled = false;
  void* scratch = nullptr;      ///< 256-byte aligned
  unsigned* arrived = nullptr;  ///< attend_counters() counters, zero before and after
};
uint64_t attend_scratch(const AttendParams&);  ///< bytes; decided by shapes alone, not by pointers
int64_t attend_counters(const AttendParams&);
cudaError_t attend(const AttendParams&, cudaStream_t);

}  // namespace ef::cuda
