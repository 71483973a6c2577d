#include "expertflow/transfer/calibration.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "expertflow/base/errors.h"
#include "expertflow/base/read_file.h"

namespace ef {

LinkCalibrator::LinkCalibrator(ExpertReader& reader, const CacheGeometry& geometry, const Clock& clock,
                               const CalibrationOptions& options)
    : reader_(reader), geometry_(geometry), clock_(clock), options_(options) {
  EF_DCHECK(options.lanes >= 1 && options.most_seconds >= 0);
  for (const auto& layer : geometry.layers) {
    experts_ += uint64_t(layer.experts);
    if (layer.experts > 0) largest_ = std::max(largest_, layer.slot_bytes);
  }
}

bool LinkCalibrator::due() const {
  if (experts_ == 0) return false;
  if (latest_.runs == 0) return true;
  return options_.period > Duration(0) && clock_.now() - latest_.at >= options_.period;
}

// Far apart, so that neither files nor caches below have them by accident: steps by a prime.
ExpertKey LinkCalibrator::next() {
  uint64_t index = (turn_++ * 7919) % experts_;
  for (size_t l = 0;; ++l) {
    const auto experts = uint64_t(geometry_.layers[l].experts);
    if (index < experts) return {LayerId(l), ExpertId(index)};
    index -= experts;
  }
}

const LinkCalibration& LinkCalibrator::run() {
  const int lanes =
      int(std::clamp<uint64_t>(options_.most_memory / std::max<uint64_t>(1, largest_), 1, uint64_t(options_.lanes)));
  latest_ = {0, 0, 0, latest_.runs + 1, clock_.now()};
  std::mutex mutex;
  std::atomic<bool> failed{false};
  const auto read = [&](int lane) {
    PageBuffer buffer(largest_ + PageBuffer::kAlignment);  // direct reads end at a page
    do {
      ExpertKey key;
      {
        const std::lock_guard lock(mutex);
        key = next();
      }
      try {
        reader_.fill(key, buffer.bytes().first(geometry_.layers[size_t(key.layer)].slot_bytes), lane);
      } catch (const std::exception&) {
        failed = true;
        return;
      }
      const std::lock_guard lock(mutex);
      latest_.bytes += reader_.file_bytes(key);
    } while (!failed && seconds(clock_.now() - latest_.at) < options_.most_seconds);
  };
  std::vector<std::thread> threads;
  for (int lane = 1; lane < lanes; ++lane) threads.emplace_back(read, lane);
  read(0);
  for (std::thread& thread : threads) thread.join();
  latest_.seconds = seconds(clock_.now() - latest_.at);
  latest_.bytes_per_second = !failed && latest_.seconds > 0 ? double(latest_.bytes) / latest_.seconds : 0;
  return latest_;
}

}  // namespace ef
