#include "expertflow/transfer/paced_reader.h"

#include <algorithm>
#include <thread>

#include "expertflow/base/errors.h"

namespace ef {

PacedReader::PacedReader(ExpertReader& inner, double bytes_per_second, const Clock& clock, SleepUntil sleep_until)
    : inner_(inner), bytes_per_second_(bytes_per_second), clock_(clock), sleep_until_(std::move(sleep_until)) {
  EF_DCHECK(bytes_per_second > 0);
  if (!sleep_until_) sleep_until_ = [&clock](Duration until) { std::this_thread::sleep_for(until - clock.now()); };
}

void PacedReader::fill(ExpertKey key, std::span<std::byte> slot, int lane) {
  const Duration start = clock_.now();
  inner_.fill(key, slot, lane);
  const uint64_t bytes = inner_.file_bytes(key);
  Duration ready = start;  // when this lane could use the link: the first part while the inner reader worked
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t part = std::min({checkpoint(lane, done), kPart, bytes - done});
    Duration until;
    {
      const std::lock_guard lock(mutex_);
      free_ = std::max(free_, ready) +
              std::chrono::duration_cast<Duration>(std::chrono::duration<double>(double(part) / bytes_per_second_));
      until = free_;
    }
    if (until > clock_.now()) sleep_until_(until);
    done += part;
    ready = until;
  }
}

}  // namespace ef
