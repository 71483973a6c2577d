// Is it worth having? Blocks of steps with and without are run in turns, in pairs, until the ratio of their times is
// clear; then the better one is kept for a while: longer each time the answer is the same, and long enough for what the
// trial cost to be a small share of it. What cannot be told apart stays off, and nothing is tried where there is
// nothing to gain. Pure: step times come in, on or off goes out.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ef {

struct TrialOptions {
  int settle = 4;       ///< steps before the first trial, off
  int block = 6;        ///< steps of one side of a pair; the first is not counted
  int least_pairs = 3;  ///< before a clear answer is believed
  int most_pairs = 8;   ///< after which it is off: what a trial evicts makes the steps without it slower, too
  /// Standard errors that the mean of the log ratios must be below "as before" to be on; twice as many of three pairs,
  /// 1.5 times as many of four: so few may agree by chance.
  double clear = 2.5;
  /// Above it, to be off: a wrong "off" costs a gain until the next trial, no more; more pairs where it harms cost
  /// time.
  double clear_off = 0.5;
  double gain = 0.005;  ///< what on must save at least, as a share of a step
  uint64_t hold = 256;  ///< steps until the next trial; doubled whenever it gives the same answer
  uint64_t most_hold = 4096;
  // What has just turned on is tried again after `hold`: a wrong "on" costs all the while.
  double most_cost = 0.003;  ///< of the time: what the trial may have lost is spread over the steps behind it
  /// Of a step with it, beyond what its own time shows: what it evicts is missing in the steps behind it, those without
  /// it of the same trial, too.
  double hidden_cost = 0.1;
  /// Without it, a step waits at least for this share of its time for what it could have had before: or nothing is
  /// tried.
  double least_possible = 0.02;
  /// A change of step time, as a share, that brings the next trial forward once what the last one lost is this small a
  /// share; and one that does so at once. Texts alone change it by a third. A disk that others use changes all the
  /// time: each trial that gives the same answer doubles that wait, and from then on a leap waits a quarter of it.
  double drift = 0.25, drift_cost = 0.005, leap = 0.5;
  double noise = 4;  ///< standard errors, by the steps' own scatter, that either must be, too
};

struct TrialResult {
  uint64_t step = 0;  ///< that it was decided after, counted from 1
  bool on = false;
  int pairs = 0;
  double on_seconds = 0, off_seconds = 0;  ///< medians of the blocks' medians
  double ratio = 1, error = 0;             ///< on / off, and one standard error of it
  double possible = 1;  ///< share of a step without it that it could save at most; pairs 0: too little
  std::string reason() const;
};

class BenefitTrial {
 public:
  explicit BenefitTrial(const TrialOptions& options = {}) : options_(options) {}

  /// Whether the next step is to be run with it.
  bool on() const { return trying() ? side_on() : on_; }
  bool trying() const { return phase_ == Phase::kTrial; }
  /// A step as on() said has taken so long. possible: the share of it that was waiting, at most 1; of steps without it,
  /// that is what it could save.
  void add(double seconds, double possible = 1);

  uint64_t steps() const { return steps_; }
  uint64_t trials() const { return trials_; }
  /// The latest, oldest first.
  const std::vector<TrialResult>& results() const { return results_; }

 private:
  enum class Phase : uint8_t { kSettle, kTrial, kHold };
  static constexpr size_t kKept = 16;
  // Pairs alternate which side is first, so that what drifts favours neither.
  bool side_on() const { return (pair_ % 2 == 0) == (side_ == 0); }
  void consider_trial();
  void begin_trial();
  void end_block();
  void judge();
  void decide(bool on, double mean, double error);
  void conclude(TrialResult result);
  bool drifted(double seconds);

  TrialOptions options_;
  Phase phase_ = Phase::kSettle;
  bool on_ = false;
  uint64_t steps_ = 0, trials_ = 0;
  int pair_ = 0, side_ = 0;
  std::vector<double> block_;              // of the side under way
  double first_ = 0;                       // the pair's first side
  std::vector<double> logs_, ons_, offs_;  // of the trial's pairs
  uint64_t held_ = 0, hold_ = 0, drift_hold_ = 0;
  int agreed_ = 0;                               // trials in a row that gave the answer before
  double usual_ = 0, squares_ = 0, recent_ = 0;  // seconds of a held step: at the decision, their squares, of late
  double possible_ = 0;                          // of steps without it, moving average
  uint64_t possible_steps_ = 0;
  std::vector<TrialResult> results_;
};

}  // namespace ef
