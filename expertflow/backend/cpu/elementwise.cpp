// Norms and rotary embedding. Short loops over a row, so one version for all instruction sets.
#include <cmath>

#include "expertflow/backend/cpu/cpu_ops.h"
#include "expertflow/base/errors.h"

namespace ef::cpu {
namespace {

constexpr int kLanes = 16;

// Lane sums of f(x[i]): kLanes partial sums, then a fixed tree.
template <class F>
float lane_sum(const float* x, int64_t n, F f) {
  float sum[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) sum[lane] += f(x[i + lane]);
  for (int lane = 0; i + lane < n; ++lane) sum[lane] += f(x[i + lane]);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) sum[lane] += sum[lane + width];
  return sum[0];
}

void norm_row(const NormArgs& a, const float* x, float* out) {
  float mean = 0;
  if (a.kind == NormKind::kLayer) mean = lane_sum(x, a.width, [](float v) { return v; }) / float(a.width);
  const float squares = lane_sum(x, a.width, [mean](float v) { return (v - mean) * (v - mean); });
  const float scale = 1.f / std::sqrt(squares / float(a.width) + a.eps);
  for (int64_t i = 0; i < a.width; ++i) {
    const float v = (x[i] - mean) * scale * a.weight[i];
    out[i] = a.bias ? v + a.bias[i] : v;
  }
}

}  // namespace

void norm(const Context& c, const NormArgs& a) {
  constexpr int64_t kRowsPerTask = 8;
  c.pool.parallel_for(a.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) norm_row(a, a.x + r * a.width, a.out + r * a.width);
  });
}

void rope(const Context& c, const RopeArgs& a) {
  EF_DCHECK(a.rotary % 2 == 0 && a.offset + a.rotary <= a.head_dim);
  constexpr int64_t kRowsPerTask = 16;
  const int half = a.rotary / 2;
  c.pool.parallel_for(a.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* cos = a.cos + r * half;
      const float* sin = a.sin + r * half;
      for (int h = 0; h < a.heads; ++h) {
        float* x = a.x + r * a.row_stride + int64_t(h) * a.head_dim + a.offset;
        for (int i = 0; i < half; ++i) {
          float& first = a.interleaved ? x[2 * i] : x[i];
          float& second = a.interleaved ? x[2 * i + 1] : x[i + half];
          const float u = first, v = second;
          first = u * cos[i] - v * sin[i];
          second = v * cos[i] + u * sin[i];
        }
      }
    }
  });
}

}  // namespace ef::cpu
