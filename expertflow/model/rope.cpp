#include "expertflow/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "expertflow/base/errors.h"

namespace ef {

namespace {

std::vector<double> default_frequencies(double theta, int rotary_dim) {
  std::vector<double> out(size_t(rotary_dim / 2));
  for (size_t i = 0; i < out.size(); ++i) out[i] = std::pow(theta, -2.0 * double(i) / rotary_dim);
  return out;
}

// The base grows with the sequence, once it is longer than the model's context (NTK-aware scaling).
double dynamic_theta(const RopeConfig& rope, int context_length, int64_t total_length) {
  double length = double(std::max<int64_t>(total_length, context_length));
  double growth = rope.factor * length / context_length - (rope.factor - 1);
  return rope.theta * std::pow(growth, double(rope.rotary_dim) / (rope.rotary_dim - 2));
}

// YaRN, section 3.2: pairs that turn often over the original context keep their frequency, those that turn less than
// beta_slow times are interpolated, with a ramp over the pair index between.
void apply_yarn(const RopeConfig& rope, std::vector<double>& inv_freq) {
  auto pair_of = [&](double rotations) {
    return rope.rotary_dim * std::log(rope.original_max_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = pair_of(rope.beta_fast), high = pair_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, double(rope.rotary_dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    double interpolated = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] *= interpolated / rope.factor + (1 - interpolated);
  }
}

double yarn_magnitude(const RopeConfig& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale != 0 && rope.mscale_all_dim != 0)
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  return yarn_mscale(rope.factor, 1);
}

// Llama 3.1: wavelengths past original / low_freq_factor are interpolated, those below original / high_freq_factor
// kept.
void apply_llama3(const RopeConfig& rope, std::vector<double>& inv_freq) {
  const double original = rope.original_max_positions;
  for (double& f : inv_freq) {
    double wavelength = 2 * std::numbers::pi / f;
    double kept = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    kept = std::clamp(kept, 0.0, 1.0);
    f = (1 - kept) * f / rope.factor + kept * f;
  }
}

double longrope_magnitude(const RopeConfig& rope, bool is_long) {
  const std::optional<double>& given = is_long ? rope.long_mscale : rope.short_mscale;
  if (given) return *given;
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.factor <= 1) return 1;
  return std::sqrt(1 + std::log(rope.factor) / std::log(double(rope.original_max_positions)));
}

}  // namespace

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

RopeFrequencies rope_frequencies(const RopeConfig& rope, int context_length, int64_t total_length) {
  RopeFrequencies out;
  double theta = rope.kind == RopeKind::kDynamic ? dynamic_theta(rope, context_length, total_length) : rope.theta;
  out.inv_freq = default_frequencies(theta, rope.rotary_dim);
  if (!rope.freq_divisors.empty()) {
    EF_DCHECK(rope.freq_divisors.size() == out.inv_freq.size());
    for (size_t i = 0; i < out.inv_freq.size(); ++i) out.inv_freq[i] /= rope.freq_divisors[i];
    return out;
  }
  switch (rope.kind) {
    case RopeKind::kNone:
    case RopeKind::kDefault:
    case RopeKind::kDynamic:
      break;
    case RopeKind::kLinear:
      for (double& f : out.inv_freq) f /= rope.factor;
      break;
    case RopeKind::kYarn:
      apply_yarn(rope, out.inv_freq);
      out.magnitude = yarn_magnitude(rope);
      break;
    case RopeKind::kLlama3:
      apply_llama3(rope, out.inv_freq);
      break;
    case RopeKind::kLongrope: {
      bool is_long = total_length > rope.original_max_positions;
      const std::vector<double>& factors = is_long && rope.long_frequencies ? rope.long_factor : rope.short_factor;
      EF_DCHECK(factors.size() == out.inv_freq.size());
      for (size_t i = 0; i < out.inv_freq.size(); ++i) out.inv_freq[i] /= factors[i];
      out.magnitude = longrope_magnitude(rope, is_long);
      break;
    }
  }
  return out;
}

RopeTable::RopeTable(const RopeConfig& rope, int context_length) : rope_(rope), context_length_(context_length) {}

void RopeTable::fill(std::span<const int32_t> positions, std::span<const int32_t> total_length, float* cos,
                     float* sin) const {
  const size_t pairs = size_t(rope_.rotary_dim / 2);
  RopeFrequencies frequencies;
  for (size_t r = 0; r < positions.size(); ++r) {
    if (r == 0 || total_length[r] != total_length[r - 1])
      frequencies = rope_frequencies(rope_, context_length_, total_length[r]);
    for (size_t i = 0; i < pairs; ++i) {
      double angle = double(positions[r]) * frequencies.inv_freq[i];
      cos[r * pairs + i] = float(std::cos(angle) * frequencies.magnitude);
      sin[r * pairs + i] = float(std::sin(angle) * frequencies.magnitude);
    }
  }
}

}  // namespace ef
