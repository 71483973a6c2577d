#include "expertflow/predict/candidates.h"

#include <algorithm>

#include "expertflow/base/errors.h"

namespace ef {

std::span<const Candidate> CandidateRanking::rank(LayerId target, std::span<const float> probabilities, int64_t rows,
                                                  const CandidateRule& rule) {
  EF_DCHECK(rows >= 1 && probabilities.size() % size_t(rows) == 0);
  const size_t experts = probabilities.size() / size_t(rows);
  all_.resize(experts);
  for (size_t e = 0; e < experts; ++e) {
    // Rows are taken as independent: a step misses an expert only if each of its rows does.
    float none = 1;
    for (size_t r = 0; r < size_t(rows); ++r) none *= 1 - probabilities[r * experts + e];
    all_[e] = {{target, ExpertId(e)}, rows == 1 ? probabilities[e] : 1 - none};
  }
  std::sort(all_.begin(), all_.end(), [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.key.expert < b.key.expert;
  });
  double total = 0;  // in the order in which it is counted up to below
  for (const Candidate& c : all_) total += double(c.probability);
  const size_t most = rule.most > 0 ? std::min(size_t(rule.most), experts) : experts;
  const size_t least = std::min(size_t(std::max(rule.least, 0)), most);
  size_t n = 0;
  for (double mass = 0; n < most; ++n) {
    const bool enough = mass >= double(rule.mass) * total || all_[n].probability < rule.least_probability;
    if (enough && n >= least) break;
    mass += double(all_[n].probability);
  }
  return {all_.data(), n};
}

}  // namespace ef
