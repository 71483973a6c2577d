#include "expertflow/quant/fit.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "expertflow/base/errors.h"
#include "expertflow/quant/block.h"

namespace ef {
namespace {

constexpr int kRefinements = 3;

float extreme(std::span<const float> x) {
  float best = 0;
  for (float v : x) {
    if (std::abs(v) > std::abs(best)) best = v;
  }
  return best;
}

/// Best scale for fixed codes, and how much weighted square it explains: minimal error = sum w x^2 - gain.
struct Projection {
  double scale = 0;
  double gain = 0;
};

template <class Code>
Projection project(std::span<const float> x, std::span<const float> weights, double scale, Code&& code) {
  const double inverse = 1 / scale;
  double xq = 0, qq = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double q = code(x[i] * inverse);
    const double w = weights[i];
    xq += w * x[i] * q;
    qq += w * q * q;
  }
  return qq > 0 ? Projection{xq / qq, xq / qq * xq} : Projection{};
}

/// Tries scales that put the extreme number near each end of the codes, then alternates codes and least squares.
template <class Code>
double search_scale(std::span<const float> x, std::span<const float> weights, double lo, double hi, double step,
                    Code&& code) {
  const double peak = extreme(x);
  if (peak == 0) return 0;
  Projection best;
  auto consider = [&](double scale) {
    const Projection p = project(x, weights, scale, code);
    if (p.gain > best.gain) best = p;
  };
  constexpr int kTries = 10;
  for (double end : {lo, hi}) {
    for (int k = -kTries; k <= kTries; ++k) {
      const double target = end + step * k;
      if (target * end > 0) consider(peak / target);
    }
  }
  for (int i = 0; i < kRefinements && best.scale != 0; ++i) consider(best.scale);
  return best.scale;
}

/// Least squares of scale and offset for fixed codes.
AffineFit solve_affine(std::span<const float> x, std::span<const float> weights, const int* q, bool offset_any_sign) {
  double sw = 0, sx = 0, sq = 0, sqq = 0, sxq = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double w = weights[i];
    sw += w;
    sx += w * x[i];
    sq += w * q[i];
    sqq += w * q[i] * q[i];
    sxq += w * x[i] * q[i];
  }
  const double det = sw * sqq - sq * sq;
  if (!(det > 0)) return {};
  AffineFit fit{(sw * sxq - sx * sq) / det, (sqq * sx - sq * sxq) / det};
  if (!offset_any_sign && fit.offset > 0) fit = {sqq > 0 ? sxq / sqq : 0, 0};
  return fit;
}

double affine_error(std::span<const float> x, std::span<const float> weights, const int* q, const AffineFit& fit) {
  double error = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = fit.scale * q[i] + fit.offset - x[i];
    error += weights[i] * d * d;
  }
  return error;
}

}  // namespace

void error_weights(std::span<const float> x, std::span<const float> scale_of, std::span<float> weights) {
  double sum = 0;
  for (float v : scale_of) sum += double(v) * v;
  // Divided by the largest value they can take, so that weights of huge or tiny numbers stay in range.
  const double rms = std::sqrt(sum / double(scale_of.size()));
  const double peak = std::abs(double(extreme(scale_of)));
  for (size_t i = 0; i < x.size(); ++i)
    weights[i] = peak == 0 ? 1.0f : float((rms + std::abs(double(x[i]))) / (2 * peak));
}

double fit_scale(std::span<const float> x, std::span<const float> weights, int lo, int hi) {
  const double step = std::min(0.1, 0.02 * hi);
  return search_scale(x, weights, lo, hi, step,
                      [=](double v) { return round_to_even(std::clamp(v, double(lo), double(hi))); });
}

double fit_scale(std::span<const float> x, std::span<const float> weights, const CodeBook& book) {
  const double step = 0.02 * book.highest();
  return search_scale(x, weights, book.lowest(), book.highest(), step,
                      [&](double v) { return double(book.value(book.nearest(v))); });
}

AffineFit fit_affine(std::span<const float> x, std::span<const float> weights, int hi, bool offset_any_sign) {
  const auto [min_it, max_it] = std::minmax_element(x.begin(), x.end());
  const double low = offset_any_sign ? *min_it : std::min(*min_it, 0.0f);
  const double range = *max_it - low;
  if (range <= 0) return {0, low};

  constexpr size_t kMaxGroup = 32;
  EF_DCHECK(x.size() <= kMaxGroup);
  int q[kMaxGroup];
  AffineFit best{range / hi, low};
  double best_error = std::numeric_limits<double>::infinity();
  auto consider = [&](const AffineFit& start) {
    for (size_t i = 0; i < x.size(); ++i) q[i] = quantize_clamped(x[i] - start.offset, start.scale, 0, hi);
    const AffineFit fit = solve_affine(x, weights, q, offset_any_sign);
    if (fit.scale <= 0) return;
    const double error = affine_error(x, weights, q, fit);
    if (error < best_error) best = fit, best_error = error;
  };
  for (int tenths = -10; tenths <= 15; ++tenths) consider({range / (hi + 0.1 * tenths), low});
  for (int i = 0; i < kRefinements; ++i) consider(best);
  return best;
}

}  // namespace ef
