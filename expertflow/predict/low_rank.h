// A small routing predictor: a low-rank projection of the hidden state and a small perceptron on it, one for each
// layer, that name the experts of the next four layers together. It is cheap (one product with the stream serves all
// four) and holds few numbers: at most a thousandth of the experts' where these are more than a billion.
//
//   z   = P x + c               [rank]   x: the stream, normalised but not weighted
//   h   = silu(A z + a)         [units]
//   y_t = W_t [z; h] + b_t      [experts], what the router of layer t is going to say
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "expertflow/predict/trained.h"

namespace ef {

inline constexpr const char* kLowRank = "low-rank";
inline constexpr int kLowRankHorizon = 4;     ///< layers ahead
inline constexpr int kLowRankCandidates = 3;  ///< of a layer, that its hit shares are given for

/// "low-rank.LAYER.part": projection [rank, hidden], shift [1, rank], mix [units, rank], mix_bias [1, units]. For each
/// target as for heads (trained.h): weight [experts, rank + units], bias [1, experts + 1].
std::string low_rank_name(LayerId layer, std::string_view part);

struct LowRankSize {
  int rank = 0, units = 0;
};
/// The largest that keeps within `most` numbers (0: no limit); rank 0 if none does. targets: (layer, target) pairs in
/// all, sources: layers that look ahead.
LowRankSize low_rank_size(int hidden, int experts, int sources, int targets, uint64_t most);
/// Numbers that one may hold beside so many of the experts'; 0: no limit.
uint64_t most_low_rank_numbers(uint64_t expert_numbers);
uint64_t low_rank_numbers(const LowRankSize& size, int hidden, int experts, int sources, int targets);

/// One layer's perceptron, on the host; the projection is the backend's work.
struct LowRankMixer {
  int rank = 0, units = 0;
  std::vector<float> mix, bias;  ///< [units, rank], [units]

  /// z [rank] -> out [rank + units]: z itself, then h.
  void operator()(const float* z, float* out) const {
    for (int i = 0; i < rank; ++i) out[i] = z[i];
    for (int u = 0; u < units; ++u) {
      const float* row = &mix[size_t(u) * size_t(rank)];
      float sum = bias[size_t(u)];
      for (int i = 0; i < rank; ++i) sum += row[i] * z[i];
      out[rank + u] = sum / (1.f + std::exp(-sum));
    }
  }
};

}  // namespace ef
