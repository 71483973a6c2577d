// Searches that the reference quantisers share: the scale (and offset) of a group of numbers with the least weighted
// squared error.
#pragma once
#include <span>

#include "expertflow/quant/block.h"

namespace ef {

/// Weight of each number's squared error: root mean square + |x|. Large numbers matter more to a product than their
/// count says. `scale_of` is the wider group (a super-block) that the root mean square is taken over.
void error_weights(std::span<const float> x, std::span<const float> scale_of, std::span<float> weights);

/// x ~ scale * q with integers q in [lo, hi]. The scale may be negative. 0 for a group of zeros.
double fit_scale(std::span<const float> x, std::span<const float> weights, int lo, int hi);

/// Ascending integers that codes stand for, and which of them is nearest to a number.
class CodeBook {
 public:
  constexpr explicit CodeBook(std::span<const signed char> values) : values_(values) {
    // Midpoints of integers are multiples of 1/2: within such a step the nearest entry is the same.
    int entry = 0;
    for (int step = 0; step < kSteps; ++step) {
      const int twice = step - kSteps / 2;  // the step is [twice, twice + 1) / 2
      while (entry + 1 < int(values.size()) && twice >= values[size_t(entry)] + values[size_t(entry) + 1]) ++entry;
      nearest_[step] = uint8_t(entry);
    }
  }
  int nearest(double v) const { return nearest_[size_t(std::clamp(v * 2 + kSteps / 2, 0.0, kSteps - 1.0))]; }
  int value(int entry) const { return values_[size_t(entry)]; }
  int lowest() const { return values_.front(); }
  int highest() const { return values_.back(); }

 private:
  static constexpr int kSteps = 1024;
  std::span<const signed char> values_;
  uint8_t nearest_[kSteps] = {};
};

/// As fit_scale: x ~ scale * book.value(q).
double fit_scale(std::span<const float> x, std::span<const float> weights, const CodeBook& book);

struct AffineFit {
  double scale = 0;
  double offset = 0;
};
/// x ~ scale * q + offset with q in [0, hi], scale >= 0. Where `offset_any_sign` is false, offset <= 0 (K-quants
/// subtract a minimum).
AffineFit fit_affine(std::span<const float> x, std::span<const float> weights, int hi, bool offset_any_sign);

/// The 256 numbers of a K-quant block, made finite, with their error weights, seen as groups.
template <int kGroup>
struct SuperBlock {
  explicit SuperBlock(const float* in) {
    for (int i = 0; i < 256; ++i) x[i] = finite_or_zero(in[i]);
    error_weights(x, x, weights);
  }
  std::span<const float> group(int g) const { return std::span<const float>(x).subspan(size_t(g * kGroup), kGroup); }
  std::span<const float> group_weights(int g) const {
    return std::span<const float>(weights).subspan(size_t(g * kGroup), kGroup);
  }
  float x[256];
  float weights[256];
};

/// Scale and minimum of each group of a K-quant block, before they are themselves quantised.
template <int kGroup>
void fit_groups(const SuperBlock<kGroup>& s, int hi, AffineFit* fits) {
  for (int g = 0; g < 256 / kGroup; ++g) fits[g] = fit_affine(s.group(g), s.group_weights(g), hi, false);
}

/// Those scales and minimums as integers in [0, hi] of one binary16 unit each, and the codes that follow from them.
template <int kGroups>
struct AffineScales {
  AffineScales(const AffineFit* fits, int hi) {
    double peak_scale = 0, peak_minimum = 0;
    for (int g = 0; g < kGroups; ++g) {
      peak_scale = std::max(peak_scale, fits[g].scale);
      peak_minimum = std::max(peak_minimum, -fits[g].offset);
    }
    d = scale_to_f16(peak_scale / hi);
    dmin = scale_to_f16(peak_minimum / hi);
    for (int g = 0; g < kGroups; ++g) {
      scale[g] = quantize_clamped(fits[g].scale, f16_to_f32(d), 0, hi);
      minimum[g] = quantize_clamped(-fits[g].offset, f16_to_f32(dmin), 0, hi);
    }
  }
  int code(double x, int g, int hi) const {
    return quantize_clamped(x + double(f16_to_f32(dmin)) * minimum[g], double(f16_to_f32(d)) * scale[g], 0, hi);
  }
  uint16_t d, dmin;
  int scale[kGroups], minimum[kGroups];
};

/// Scales of a K-quant block without minimums as integers in [lo, hi] of one binary16 unit, and the codes that follow
/// from them.
template <int kGroups>
struct SymmetricScales {
  SymmetricScales(const double* fits, int lo, int hi) {
    double peak = 0;
    for (int g = 0; g < kGroups; ++g) {
      if (std::abs(fits[g]) > std::abs(peak)) peak = fits[g];
    }
    d = scale_to_f16(peak / lo);
    for (int g = 0; g < kGroups; ++g) scale[g] = quantize_clamped(fits[g], f16_to_f32(d), lo, hi);
  }
  double unit(int g) const { return double(f16_to_f32(d)) * scale[g]; }
  uint16_t d;
  int scale[kGroups];
};

}  // namespace ef
