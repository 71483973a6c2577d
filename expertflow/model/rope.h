// Rotary position tables for every kind (default, linear, dynamic, yarn, longrope, llama3).
// Sources: Hugging Face transformers modeling_rope_utils (formulas), YaRN arXiv:2309.00071, LongRoPE arXiv:2402.13753.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "expertflow/model/config.h"

namespace ef {

/// Frequencies of each pair for a sequence of total_length tokens (dynamic and longrope depend on it), and the factor
/// on cos/sin.
struct RopeFrequencies {
  std::vector<double> inv_freq;  ///< [rotary_dim / 2]
  double magnitude = 1;
};
/// YaRN's growth of attention with the context: 1 up to factor 1, else 0.1 * mscale * ln(factor) + 1.
double yarn_mscale(double factor, double mscale);
RopeFrequencies rope_frequencies(const RopeConfig& rope, int context_length, int64_t total_length);

/// cos and sin [rows, rotary_dim/2] for rows at the given positions. total_length[i]: tokens that row i's sequence will
/// hold after this step; frequencies are chosen by it.
class RopeTable {
 public:
  RopeTable(const RopeConfig& rope, int context_length);
  void fill(std::span<const int32_t> positions, std::span<const int32_t> total_length, float* cos, float* sin) const;

 private:
  RopeConfig rope_;
  int context_length_;
};

}  // namespace ef
