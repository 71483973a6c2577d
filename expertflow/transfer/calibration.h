// The slow tier measured by itself: a short read of some experts, all lanes at once, bounded in time and memory. It
// gives the first prediction distance (predict/step_controller.h) before any copy has been counted, and finds a link
// that has changed while no copy was made.
#pragma once
#include <cstdint>

#include "expertflow/base/clock.h"
#include "expertflow/transfer/expert_reader.h"

namespace ef {

struct CalibrationOptions {
  int lanes = 4;                    ///< the reader's
  double most_seconds = 0.02;       ///< after which no further read begins
  uint64_t most_memory = 16 << 20;  ///< of buffers; one is taken whatever it needs
  Duration period{0};               ///< between two; 0: one at the start, no other
};

struct LinkCalibration {
  double bytes_per_second = 0;  ///< of the latest; 0: it failed
  uint64_t bytes = 0;           ///< that it read
  double seconds = 0;
  uint64_t runs = 0;
  Duration at{0};  ///< when it began
};

class LinkCalibrator {
 public:
  /// All must outlive it.
  LinkCalibrator(ExpertReader& reader, const CacheGeometry& geometry, const Clock& clock,
                 const CalibrationOptions& options);
  /// Whether it is time: never run, or a period has passed since.
  bool due() const;
  /// Nothing else may use the reader meanwhile. Reads that fail end it: the bandwidth is then 0, and whoever needs the
  /// expert will hear why.
  const LinkCalibration& run();
  const LinkCalibration& latest() const { return latest_; }

 private:
  ExpertKey next();
  ExpertReader& reader_;
  const CacheGeometry& geometry_;
  const Clock& clock_;
  CalibrationOptions options_;
  uint64_t experts_ = 0, largest_ = 0, turn_ = 0;
  LinkCalibration latest_;
};

}  // namespace ef
