// From probabilities to candidates: which experts of a layer are worth having for a step, likeliest first.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "expertflow/base/ids.h"

namespace ef {

struct Candidate {
  ExpertKey key;
  float probability = 0;  ///< that at least one of the step's rows chooses it
};

/// How many candidates: by confidence, within bounds.
struct CandidateRule {
  /// The fewest whose probabilities add up to this share of all experts' (papers on gates call it cumulative mass).
  float mass = 0.9f;
  float least_probability = 0;  ///< none below it
  int least = 0;                ///< but at least so many, whatever the two above say
  int most = 0;                 ///< and at most so many; 0: as many as there are experts
};
/// A rule for all layers, and others for some (layer_wise_config).
struct CandidateRules {
  CandidateRule all;
  std::vector<CandidateRule> layers;  ///< by layer; empty: `all` everywhere
  const CandidateRule& of(LayerId layer) const { return size_t(layer) < layers.size() ? layers[size_t(layer)] : all; }
};

/// Joins the rows of a step and ranks. Its memory is that of the largest call so far.
class CandidateRanking {
 public:
  /// probabilities: [rows, experts] of one target. The result is valid until the next call; likeliest first, the lower
  /// id first among equals.
  std::span<const Candidate> rank(LayerId target, std::span<const float> probabilities, int64_t rows,
                                  const CandidateRule& rule);

 private:
  std::vector<Candidate> all_;
};

}  // namespace ef
