// What may be copied ahead of its layer, and whether anything should be. A predictor says what is likely, the governor
// says what of it is worth the link: copies that can begin before their layer's turn, likeliest first, none at the cost
// of what is asked for: a copy ahead waits for every demand, and one that is late is a demand that has begun early. On
// and off are decided by trial (benefit_trial.h). Nothing is an answer.
//
// Pure: times and counts come in, decisions go out. One thread. The engine and the replay laboratory use the same
// object:
//   begin_step; for each MoE layer: on_event, then plan if ahead(); end_step.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "expertflow/base/clock.h"
#include "expertflow/base/ids.h"
#include "expertflow/sched/benefit_trial.h"

namespace ef {

enum class PrefetchMode : uint8_t { kOff, kOn, kAuto };
/// "off", "on", "auto"; ConfigError naming the flag otherwise.
PrefetchMode parse_prefetch_mode(const std::string& text);

struct PrefetchCandidate {
  ExpertKey key;
  float probability = 0;  ///< that its layer's next event asks for it, as the predictor says
  int distance = 1;       ///< MoE layers from the present one to its own, 1 at least
  uint64_t bytes = 0;     ///< that copying it moves
};

/// The link as it is now: what its owner has counted since the beginning.
struct LinkView {
  double bytes_per_second = 0;     ///< of late, while busy; 0: not measured yet, nothing is copied ahead then
  double demand_busy_seconds = 0;  ///< at least one demanded copy was queued or under way
  uint64_t prefetch_bytes = 0;     ///< ahead copies that are queued or under way
};

struct GovernorOptions {
  PrefetchMode mode = PrefetchMode::kAuto;
  uint64_t pool_bytes = 0;      ///< of the fast tier
  double pool_share = 0.25;     ///< of it, for experts that nobody has asked for yet
  double least_expected = 0.4;  ///< share of its like that were used, below which a candidate is left alone
  double least_far = 0.7;       ///< the same where its layer is not the next: there will be a nearer look
  double least_kept = 0.15;     ///< below which a queued copy is taken back when its layer is predicted anew
  double budget_share = 1;      ///< of what the link can begin before a layer's turn
  int64_t most_rows = 31;       ///< rows of a step that is looked ahead in: more of them want nearly every expert
  TrialOptions trial;
};

struct PrefetchPlan {
  std::vector<PrefetchCandidate> issue;  ///< nearest layer first, then likeliest
  std::vector<ExpertKey> cancel;         ///< issued before, no longer likely
};

/// What became of issued copies whose predictor said so much.
struct PrefetchBucket {
  double used = 0, judged = 0;  ///< fading
};

struct GovernorStats {
  PrefetchMode mode = PrefetchMode::kAuto;
  bool on = false, trying = false;  ///< for the next step
  uint64_t steps_on = 0, steps_off = 0;
  // candidates by what became of them
  uint64_t candidates = 0, issued = 0, unlikely = 0, over_budget = 0, over_share = 0, cancelled = 0;
  uint64_t used = 0, unused = 0;  ///< issued ones by their layer's event
  uint64_t issued_bytes = 0, used_bytes = 0, unused_bytes = 0;
  double layer_seconds = 0;           ///< from one layer's event to the next one's, moving average
  double idle_seconds_per_layer = 0;  ///< of it, no demanded copy was queued or under way
  uint64_t budget_bytes = 0;          ///< of the last plan, for the next layer
  std::array<std::array<PrefetchBucket, 10>, 2>
      buckets{};  ///< of the next layer and of later ones; by probability, tenths
  uint64_t trials = 0;
  std::vector<TrialResult> decisions;  ///< the latest, oldest first
  std::string reason() const;          ///< of the present state, in words
};

class PrefetchGovernor {
 public:
  explicit PrefetchGovernor(const GovernorOptions& options);

  /// A step of so many rows begins.
  void begin_step(Duration now, int64_t rows);
  /// Whether this step is looked ahead in: if not, nothing needs to be predicted either.
  bool ahead() const { return ahead_; }
  void set_budget_share(double share) { options_.budget_share = share; }  ///< as the step's regime caps it
  /// waited_seconds: that its compute waited for copies.
  void end_step(Duration now, double waited_seconds);

  /// A layer's event asks for these experts (ascending), before its copies are queued. What was issued for it is
  /// judged.
  void on_event(LayerId layer, std::span<const ExpertId> wanted, const LinkView& link, Duration now);
  /// likely: all that was predicted, near or not: what was issued before for the layers in it is judged anew.
  /// candidates: of it, what is not near and not on its way. held_bytes: of the pool, by experts that nobody has asked
  /// for yet.
  PrefetchPlan plan(std::span<const PrefetchCandidate> candidates, std::span<const std::pair<ExpertKey, float>> likely,
                    uint64_t held_bytes, const LinkView& link);
  /// An issued copy that found no slot.
  void drop(ExpertKey key);

  GovernorStats stats() const;
  /// Counts alone, without the trials.
  const GovernorStats& counts() const { return stats_; }

 private:
  struct Issued {
    float probability = 0;
    int distance = 1;
    uint64_t bytes = 0;
  };
  static size_t bucket_of(float probability) { return std::min<size_t>(9, size_t(std::max(0.f, probability) * 10)); }
  double expected(float probability, int distance) const;
  void judge(const Issued& issued, bool used);
  double budget_bytes(int distance, const LinkView& link) const;
  bool still_likely(ExpertKey key, int distance, std::span<const std::pair<ExpertKey, float>> likely) const;
  void choose(std::span<const PrefetchCandidate> candidates, uint64_t held_bytes, const LinkView& link,
              PrefetchPlan& plan);

  GovernorOptions options_;
  BenefitTrial& trial() { return trials_.try_emplace(size_class(), options_.trial).first->second; }
  int size_class() const { return int(std::bit_width(uint64_t(rows_))); }

  // By rows of a step, in powers of two: what pays for few may not for many.
  std::map<int, BenefitTrial> trials_;
  GovernorStats stats_;
  std::map<ExpertKey, Issued> issued_;
  int64_t rows_ = 0;
  bool ahead_ = false;
  Duration step_begin_{0};
  bool layer_known_ = false;  // an event of this step has been seen
  Duration layer_begin_{0};
  double layer_busy_ = 0;
};

}  // namespace ef
