// What the number of rows in a step says about copying ahead and about leaving. It caps candidates and bytes; how far
// is looked ahead stays the step controller's.
//
//   under 32    few rows: a wrong guess costs as much as a right one saves, so only the likely
//   32 to 256   by probability mass, within a share of the link's time
//   above 256   nearly every expert is wanted anyway and the link is busy with demand: hardly anything ahead, and what
//               an event has brought in leaves when it has been used
//   512 and up  besides, rows that do not fit one pass are put together by the distance of their embeddings first
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace ef {

struct Regime {
  const char* name;
  int64_t rows;             ///< from so many rows on
  float least_probability;  ///< of a candidate
  double candidate_share;   ///< of a layer's experts, candidates at most
  double byte_share;        ///< of the bytes that the link could carry until the layer's turn
  bool eager_eviction;      ///< what a step has used leaves at once rather than by the policy's order
  bool group_tokens;        ///< rows are to be grouped by the distance of their embeddings first
};
const Regime& regime_of(int64_t rows);

struct RegimeChange {
  uint64_t step = 0;  ///< counted from 1
  std::string from, to;
  std::string reason;  ///< with the rows that decided
};
struct RegimeStats {
  std::string name;  ///< of the latest step
  struct Share {
    std::string name;
    uint64_t steps = 0, rows = 0;
  };
  std::vector<Share> regimes;        ///< all, by rows
  uint64_t capped = 0;               ///< candidates that were left out by the regime's floor or share
  std::deque<RegimeChange> changes;  ///< the latest 16, oldest first
};

/// Follows the steps of a run.
class RegimeTracker {
 public:
  RegimeTracker();
  /// A step of so many rows begins.
  const Regime& begin_step(int64_t rows);
  const Regime& now() const { return *now_; }
  /// Whether a layer of so many experts takes another candidate, after `taken` of it, with that probability.
  bool admits(float probability, int taken, int experts);
  const RegimeStats& stats() const { return stats_; }

 private:
  const Regime* now_;
  uint64_t steps_ = 0;
  RegimeStats stats_;
};

}  // namespace ef
