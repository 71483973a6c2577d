// The inner loops that exist once per instruction set, as a table of function pointers.
// The files that fill it are compiled with flags of their own, so this header holds plain data only: an inline function
// or a template here could be emitted by such a file and then run on a processor that lacks the instructions.
//
// Exactness: what an element of a result is made of, and in which order, depends on its own length alone. A lane sum
// is `lanes` partial sums over k (lane k mod lanes), missing elements counting as zero, added by one fixed tree.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ef::cpu {

/// Element types that the loops convert in registers.
enum Scalar : int { kScalarF32, kScalarF16, kScalarBF16, kScalars };

/// out[r][out_begin + i] = lane sum of w[i][k] * x[r][k] over k, plus bias[i], for i in [0, n) and r in [0, rows).
struct MatmulTile {
  const std::byte* w = nullptr;
  int64_t w_stride = 0;  ///< bytes from one row of w to the next
  int64_t n = 0, cols = 0;
  const float* bias = nullptr;  ///< [n] or null
  const float* const* x = nullptr;
  int64_t rows = 0;
  float* const* out = nullptr;
  int64_t out_begin = 0;
};

/// out[h][d] += p[h][p_begin + t] * v[t][d], t ascending one by one, for h in [0, heads) and d in [0, dim).
struct WeightedSum {
  const std::byte* v = nullptr;
  int64_t v_stride = 0;  ///< bytes from one position to the next
  int64_t n = 0, dim = 0;
  const float* const* p = nullptr;
  int64_t p_begin = 0;
  int heads = 0;
  float* const* out = nullptr;
};

/// A row of activations in 8 bits: x[k] = scale[k / 32] * codes[k] within half a step. cols is a multiple of 32; a
/// group is what the weight format scales together, 16 or 32 elements.
struct QuantizedRow {
  const int8_t* codes = nullptr;      ///< [cols]
  const float* scale = nullptr;       ///< [cols / 32] largest magnitude / 127; NaN where a number is not finite
  const float* scaled_sum = nullptr;  ///< [cols / group] scale * sum of the group's codes
  const int32_t* start = nullptr;     ///< [cols / group] -zero * sum of the group's codes
};
/// Quantises n numbers (a multiple of 32), writing n / group sums. zero: TileFormat's.
struct QuantizeRow {
  const float* x = nullptr;
  int64_t n = 0;
  int group = 32, zero = 0;
  int8_t* codes = nullptr;
  float* scale = nullptr;
  float* scaled_sum = nullptr;
  int32_t* start = nullptr;
};

/// out[r][out_begin + 16 t + lane] for whole tiles of weights (quant/tiles.h) and 8-bit rows: over groups of k in
/// ascending order, element += (weight scale * row scale) * (exact integer sum), and where the format has minimums
/// element += -minimum * scaled_sum; then bias. The same bits on every instruction set.
struct TileMatmul {
  const std::byte* tiles = nullptr;
  int64_t tile_bytes = 0, tiles_count = 0;
  int64_t blocks = 0;           ///< of a row
  const float* bias = nullptr;  ///< [16 * tiles_count] or null
  const QuantizedRow* x = nullptr;
  int64_t rows = 0;
  float* const* out = nullptr;
  int64_t out_begin = 0;
};
/// What a format's tile kernel wants of the activations. fn is null where there is none.
struct TileFormat {
  void (*fn)(const TileMatmul&) = nullptr;
  int group = 32;
  int zero = 0;  ///< codes are taken as unsigned numbers, this much too large
};

using DequantizeFn = void (*)(const std::byte* blocks, float* out, int64_t n);
inline constexpr int kMaxFormats = 32;

struct Kernels {
  void (*matmul[kScalars])(const MatmulTile&);
  /// Products with BF16 weights where they are not matmul[kScalarBF16]; null: they are.
  void (*bf16_weights)(const MatmulTile&);
  /// Products with E4M3 weights taken 2^-8 as large as they are, without their block scales; null: dequantise.
  void (*f8_weights)(const MatmulTile&);
  void (*weighted_sum[kScalars])(const WeightedSum&);
  /// out[i] = x[i] * factor
  void (*scale)(const float* x, int64_t n, float factor, float* out);
  /// s[i] *= scale; returns the largest, or `least` if that is larger. NaN elements may be passed over.
  float (*scale_max)(float* s, int64_t n, float scale, float least);
  /// s[i] = exp(s[i] - max); returns the lane sum.
  float (*exp_sum)(float* s, int64_t n, float max);
  /// out[i] = silu(gate[i]) * up[i]
  void (*silu_mul)(const float* gate, const float* up, float* out, int64_t n);
  /// gpt-oss: g = min(gate, limit), u = clamp(up, +-limit): (u + 1) * g * sigmoid(alpha * g)
  void (*clamped_swiglu)(const float* gate, const float* up, float* out, int64_t n, float alpha, float limit);
  /// Array of kMaxFormats by Format, or null; a null entry means the format table's reference. Same values, bit for
  /// bit; kF8E4M3 without its block scales.
  const DequantizeFn* dequantize;
  void (*quantize_row)(const QuantizeRow&);
  /// Array of kMaxFormats by Format, or null.
  const TileFormat* tiles;
};

const Kernels& reference_kernels();
/// Only where supported_isas() has the set.
const Kernels& avx2_kernels();
const Kernels& avx2_vnni_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_vnni_kernels();
const Kernels& avx512_bf16_kernels();

}  // namespace ef::cpu
