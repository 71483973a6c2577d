// Watches what fast arithmetic does to the outputs of MoE layers: every so many steps one layer's output is computed
// again by exact ops, and a layer that is off by more than its format allows goes on with these.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "expertflow/base/ids.h"
#include "expertflow/quant/formats.h"

namespace ef {

struct DriftOptions {
  int every = 0;  ///< steps from one check to the next, each of the next sparse layer; 0: none
  /// Relative error ||fast - exact|| / ||exact|| of a layer's output from which it is no longer trusted: where products
  /// round to float16, to bfloat16, and activations to 8 bits.
  double limit_f16 = 1e-3, limit_bf16 = 1e-2, limit_q8 = 3e-2;
  bool rounds_to_8_bits = false;
};

struct DriftStats {
  uint64_t checks = 0;
  double worst = 0;             ///< largest relative error seen
  std::vector<LayerId> fallen;  ///< layers that are computed by exact ops since
  std::string text() const;     ///< one line
};

class Drift {
 public:
  Drift() = default;
  /// formats: of each layer's experts, the coarsest rounding first; layers that are not sparse hold kCount.
  Drift(const DriftOptions& options, std::vector<Format> formats);

  /// Whether the step that comes is checked: it must not be recorded or replayed.
  bool next_step_is_checked() const { return options_.every > 0 && (steps_ + 1) % uint64_t(options_.every) == 0; }
  void begin_step();
  /// Whether this layer's output is to be computed twice.
  bool wants(LayerId layer) const { return layer == due_; }
  bool exact(LayerId layer) const { return !exact_.empty() && exact_[size_t(layer)]; }
  bool any_exact() const { return !stats_.fallen.empty(); }
  /// Both outputs; whether the layer is still trusted. Numbers that are not finite where exact ones are never are.
  bool record(LayerId layer, std::span<const float> fast, std::span<const float> exact);
  const DriftStats& stats() const { return stats_; }
  double limit(LayerId layer) const;

 private:
  DriftOptions options_;
  std::vector<Format> formats_;
  std::vector<bool> exact_;
  uint64_t steps_ = 0;
  LayerId due_ = -1, last_ = -1;
  DriftStats stats_;
};

}  // namespace ef
