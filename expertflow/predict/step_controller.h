// How far ahead to look: the distance S in layers, so that the compute of S layers covers the copies of the experts
// that one layer is expected to miss.
//
//   S = ceil(Ne * Es / (Cs * Tl)), within [1, S_max]
//
// Ne experts expected and not near (of the smallest set that covers a mass of the predicted probability, which is what
// CandidateRanking gives, those that have to be fetched), Es bytes of one, Cs bytes per second of the link while it is
// busy, Tl seconds of one layer's compute. All are moving averages that are renewed every 100 tokens, and at once when
// the latest ones have left them by a quarter. Feedback moves S by at most one from the formula's value. Pure: numbers
// in, a number out; one thread.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <string>

namespace ef {

/// Sum of squared distances between all pairs of rows, [rows, dim], in O(rows * dim):
/// rows * sum |v|^2 - |sum v|^2.
double pairwise_distance(std::span<const float> embeddings, int64_t rows);

struct StepControllerOptions {
  int most = 8;                 ///< S_max
  double expert_bytes = 0;      ///< Es, of a typical expert
  int renew_tokens = 100;       ///< tokens between two renewals
  double renew_change = 0.25;   ///< change of the ratio behind S that does not wait for the next one
  int stall_threshold = 4;      ///< stalls that raise S
  int overfetch_threshold = 3;  ///< unused or far too early copies in a row that lower it
  double high_hit_rate = 0.95;  ///< of the tokens since the last renewal, above which S goes up by one
  /// How much a batch's diversity, relative to its own moving average, moves Ne: 0.2 is up to 20 % more for a batch
  /// that is twice as diverse. Above 0 as measured (docs/benchmarks): more diverse rows want more distinct experts.
  double diversity_gain = 0.2;
  double bandwidth = 0;      ///< calibrated bytes per second, 0: unknown
  double layer_seconds = 0;  ///< expected of one layer, 0: unknown
  double expected = 0;       ///< experts that a layer is expected to miss at first: top_k
};

struct StepChange {
  uint64_t token = 0;  ///< tokens seen before it
  int from = 0, to = 0;
  int formula = 0;     ///< its value then
  std::string reason;  ///< in words, with the numbers that decided
};

struct StepControllerStats {
  int distance = 0, formula = 0, offset = 0;
  int first = 0;  ///< the distance at the start, by what was calibrated (init_S)
  double expected = 0, bandwidth = 0, layer_seconds = 0;  ///< Ne, Cs, Tl as of the latest renewal
  uint64_t tokens = 0, renewals = 0, stalls = 0, overfetches = 0;
  std::deque<StepChange> changes;  ///< the latest 64, oldest first
};

class StepController {
 public:
  /// ConfigError for limits and thresholds below 1. The first S is the formula's for what is known of the machine,
  /// or 1.
  explicit StepController(const StepControllerOptions& options);

  int distance() const { return distance_; }
  int formula() const { return stats_.formula; }  ///< its value, without feedback

  // What is measured. expected: experts of the layer that are expected and not near; seconds: its compute without
  // stalls.
  void on_layer(double expected, double seconds);
  /// bytes moved while the link was busy for so long.
  void on_copies(double bytes, double busy_seconds);
  /// The link was measured by itself: its bandwidth counts from now on, whatever copies have said before.
  void on_calibration(double bytes_per_second);
  void on_stall();                 ///< compute waited for a copy
  void on_prefetch(bool in_time);  ///< one was judged: used in time, or unused or far too early
  void on_hits(uint64_t hits, uint64_t accesses);
  void on_diversity(double pairwise);  ///< of the step's rows, once a step; steps of one row have none
  /// A step of so many rows has ended. S changes here and nowhere else.
  void end_step(int64_t rows);

  StepControllerStats stats() const;

 private:
  // Fading sums: an average over the latest few steps.
  struct Average {
    double sum = 0, weight = 0;
    void add(double value, double by) { sum += value, weight += by; }
    void fade(double keep) { sum *= keep, weight *= keep; }
    double value(double otherwise) const { return weight > 0 ? sum / weight : otherwise; }
  };
  double expected_now() const;
  double ratio_of(double expected, double bandwidth, double layer_seconds) const;
  int formula_of(double ratio) const;
  void renew(const char* why);
  void move(int by, const std::string& reason);
  void settle(const std::string& reason);

  StepControllerOptions options_;
  Average expected_, bandwidth_, layer_, diversity_;
  double spread_ = 1;  // this step's diversity over its moving average
  StepControllerStats stats_;
  int distance_ = 1;
  double ratio_ = 0;
  int64_t since_renewal_ = 0;
  int stall_run_ = 0, overfetch_run_ = 0;
  uint64_t hits_ = 0, accesses_ = 0;
};

}  // namespace ef
