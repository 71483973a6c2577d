// The oracle: every loop as one would write it down. Eight lanes, since a single running sum in float32 loses too much.
#include <cmath>
#include <cstring>
#include <vector>

#include "expertflow/backend/cpu/kernels.h"
#include "expertflow/quant/scalars.h"

namespace ef::cpu {
namespace {

constexpr int kLanes = 8;

struct F32 {
  static constexpr int kBytes = 4;
  static float load(const std::byte* p) {
    float v;
    std::memcpy(&v, p, 4);
    return v;
  }
};
struct BF16 {
  static constexpr int kBytes = 2;
  static float load(const std::byte* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return bf16_to_f32(v);
  }
};
struct F16 {
  static constexpr int kBytes = 2;
  static float load(const std::byte* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return f16_to_f32(v);
  }
};

float add_lanes(const float* s) { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }

float dot(const float* w, const float* x, int64_t cols) {
  float sum[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= cols; k += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) sum[lane] += w[k + lane] * x[k + lane];
  for (int lane = 0; k + lane < cols; ++lane) sum[lane] += w[k + lane] * x[k + lane];
  return add_lanes(sum);
}

template <class T>
void matmul(const MatmulTile& a) {
  std::vector<float> row(static_cast<size_t>(a.cols));
  for (int64_t i = 0; i < a.n; ++i) {
    for (int64_t k = 0; k < a.cols; ++k) row[size_t(k)] = T::load(a.w + i * a.w_stride + k * T::kBytes);
    for (int64_t r = 0; r < a.rows; ++r) {
      const float sum = dot(row.data(), a.x[r], a.cols);
      a.out[r][a.out_begin + i] = a.bias ? sum + a.bias[i] : sum;
    }
  }
}

template <class T>
void weighted_sum(const WeightedSum& a) {
  for (int h = 0; h < a.heads; ++h) {
    for (int64_t t = 0; t < a.n; ++t) {
      const std::byte* v = a.v + t * a.v_stride;
      const float p = a.p[h][a.p_begin + t];
      for (int64_t d = 0; d < a.dim; ++d) a.out[h][d] += p * T::load(v + d * T::kBytes);
    }
  }
}

void scale(const float* x, int64_t n, float factor, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}

float scale_max(float* s, int64_t n, float scale, float least) {
  for (int64_t i = 0; i < n; ++i) {
    s[i] *= scale;
    if (s[i] > least) least = s[i];
  }
  return least;
}

float exp_sum(float* s, int64_t n, float max) {
  float sum[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    s[i] = std::exp(s[i] - max);
    sum[i % kLanes] += s[i];
  }
  return add_lanes(sum);
}

void silu_mul(const float* gate, const float* up, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = gate[i] / (1.f + std::exp(-gate[i])) * up[i];
}

void clamped_swiglu(const float* gate, const float* up, float* out, int64_t n, float alpha, float limit) {
  for (int64_t i = 0; i < n; ++i) {
    // Written so that a NaN passes through the clamps.
    const float g = gate[i] > limit ? limit : gate[i];
    const float u = up[i] > limit ? limit : (up[i] < -limit ? -limit : up[i]);
    out[i] = (u + 1.f) * (g / (1.f + std::exp(-alpha * g)));
  }
}

}  // namespace

const Kernels& reference_kernels() {
  static constexpr Kernels kernels = {
      .matmul = {matmul<F32>, matmul<F16>, matmul<BF16>},
      .bf16_weights = nullptr,
      .f8_weights = nullptr,
      .weighted_sum = {weighted_sum<F32>, weighted_sum<F16>, weighted_sum<BF16>},
      .scale = scale,
      .scale_max = scale_max,
      .exp_sum = exp_sum,
      .silu_mul = silu_mul,
      .clamped_swiglu = clamped_swiglu,
      .dequantize = nullptr,
      .quantize_row = nullptr,
      .tiles = nullptr,
  };
  return kernels;
}

}  // namespace ef::cpu
