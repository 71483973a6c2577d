// A reader behind a link of so many bytes a second, all lanes together: a slow disk on a fast one, or a share of a disk
// that others need too. What the inner reader takes counts; the rest is waited for.
#pragma once
#include <functional>
#include <mutex>

#include "expertflow/base/clock.h"
#include "expertflow/transfer/expert_reader.h"

namespace ef {

class PacedReader final : public ExpertReader {
 public:
  /// Returns when the clock has reached a time.
  using SleepUntil = std::function<void(Duration)>;
  /// inner and clock must outlive it. bytes_per_second > 0. sleep_until may be empty: the thread sleeps.
  PacedReader(ExpertReader& inner, double bytes_per_second, const Clock& clock, SleepUntil sleep_until = {});
  uint64_t file_bytes(ExpertKey key) const override { return inner_.file_bytes(key); }
  void fill(ExpertKey key, std::span<std::byte> slot, int lane) override;

 private:
  static constexpr uint64_t kPart = 256 << 10;  // that lanes take turns in
  ExpertReader& inner_;
  const double bytes_per_second_;
  const Clock& clock_;
  SleepUntil sleep_until_;
  std::mutex mutex_;
  Duration free_{0};  // the link is taken until then
};

}  // namespace ef
