// How much scratch the ops of a step take, asked of the ops themselves, shape by shape.
#include <algorithm>

#include "expertflow/backend/cuda/cuda_ops.h"
#include "expertflow/backend/cuda/device/fast.h"
#include "expertflow/backend/cuda/device/layers.h"
#include "expertflow/backend/cuda_backend.h"

namespace ef {
namespace cuda {
namespace {

// Of ops that go in waves.
uint64_t wave_bytes(int64_t rows, int64_t floats_of_row) {
  const auto of_row = uint64_t(std::max<int64_t>(1, floats_of_row));
  return std::max(of_row, std::min(uint64_t(rows) * of_row, kWaveFloats)) * sizeof(float);
}

uint64_t exact_attention_bytes(const StepShape& s) {
  return wave_bytes(s.rows, attention_scratch_floats(1, s.heads, s.v_dim, s.context));
}
uint64_t exact_experts_bytes(const StepShape& s) { return wave_bytes(s.rows * s.top_k, 2 * s.ffn); }

// Rows as both kinds of weights want them.
uint64_t gemm_bytes(const StepShape& s) {
  GemmParams p;
  p.format = Fmt::kBF16;
  p.rows = s.rows, p.n = s.hidden, p.cols = s.widest;
  p.more = 1, p.also[0].format = Fmt::kF16;
  return gemm_scratch(p);
}

uint64_t routed_bytes(const StepShape& s) {
  RoutedParams p;
  p.gate_format = p.down_format = Fmt::kBF16, p.up_format = Fmt::kF16;
  p.rows = s.rows, p.hidden = s.hidden, p.ffn = s.ffn, p.experts = s.experts, p.top_k = s.top_k;
  return std::max(routed_gemm_scratch(p), routed_matvec_scratch(p));
}

// More pieces of fewer rows may take more than all rows do.
uint64_t attend_bytes(const StepShape& s) {
  constexpr int64_t kManyRows = 4096;  // more than any device has multiprocessors: no pieces
  static const uint8_t any = 0;
  AttendParams p;
  p.kv.type = int(s.kv);
  p.kv.kv_heads = s.kv_heads, p.kv.k_dim = s.k_dim, p.kv.v_dim = s.v_dim;
  p.kv.k = p.kv.v = const_cast<uint8_t*>(&any);
  if (s.latent) p.kv.v = nullptr;
  p.heads = s.heads, p.reach = s.context;
  uint64_t most = 0;
  const auto add = [&](int64_t rows) {
    p.kv.rows = rows;
    for (const bool one_each : {false, true}) {
      p.one_row_each = one_each;
      most = std::max(most, attend_scratch(p));
    }
  };
  for (int64_t rows = 1; rows <= std::min(s.rows, kManyRows); ++rows) add(rows);
  add(s.rows);
  return most;
}

uint64_t layers_bytes(const StepShape& s) {
  if (s.latent) return 0;
  LayersParams p;
  p.hidden = int(s.hidden), p.heads = s.heads, p.kv_heads = s.kv_heads, p.head_dim = s.k_dim, p.ffn = int(s.ffn);
  p.block_tokens = 1, p.count = 1;
  p.route.experts = s.experts, p.route.top_k = s.top_k;
  return layers_scratch(p);
}

}  // namespace
}  // namespace cuda

uint64_t cuda_scratch_bytes(const StepShape& shape, const CudaOptions& options) {
  using namespace cuda;
  const uint64_t exact = exact_experts_bytes(shape);
  if (options.batch_invariant) return std::max(exact, exact_attention_bytes(shape));
  return std::max({exact, gemm_bytes(shape), routed_bytes(shape), attend_bytes(shape), layers_bytes(shape)});
}

}  // namespace ef
