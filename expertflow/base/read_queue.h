// Many reads at once. A queue keeps several of them in the kernel's hands, so that a disk sees deep requests; it is
// used by one thread at a time and never spins.
//
// Two kinds: io_uring, with all of its depth from one thread, and pread, one read at a time a queue (depth then comes
// from the number of queues). Short reads, EINTR and EAGAIN are gone on with, a bounded number of times without
// progress; what is left is a DeviceError.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expertflow/base/read_file.h"

namespace ef {

/// Offset, length and address keep the file's alignment (ReadFile).
struct ReadRequest {
  const ReadFile* file = nullptr;
  uint64_t offset = 0;
  std::span<std::byte> to;
  uint64_t needed = 0;  ///< bytes of `to` that must come; the rest may lie behind the file's end
};

class ReadQueue {
 public:
  virtual ~ReadQueue() = default;
  virtual std::string_view kind() const = 0;  ///< "io_uring", "pread"
  /// Memory that reads go to again and again, pinned once instead of for each read. Returns why it was refused (an
  /// errno in words); empty if all is well, or if the kind has no use for it.
  virtual std::string register_memory(std::span<std::byte> memory) = 0;
  /// Returns when all are complete; done(i) is called on this thread as each one is, in any order, while others go on.
  /// Throws DeviceError naming the file, the offset, what was asked and what came; or what done() throws. No read of
  /// the call is under way any more then.
  virtual void read(std::span<const ReadRequest> requests, const std::function<void(size_t)>& done) = 0;
};

/// Bytes of one read: larger requests are cut. Measured with bench/disk: more gains nothing, less costs calls.
inline constexpr uint64_t kReadBytes = 1 << 20;

struct ReadQueueOptions {
  int depth = 8;  ///< reads in the kernel's hands at once
  uint64_t read_bytes = kReadBytes;
  IoFaults faults;
};

/// `count` queues of io_uring, or none and the reason (not built, refused by the kernel with errno).
struct UringQueues {
  std::vector<std::unique_ptr<ReadQueue>> queues;
  std::string why_not;
};
UringQueues make_uring_queues(int count, const ReadQueueOptions& options);
std::unique_ptr<ReadQueue> make_pread_queue(const ReadQueueOptions& options);

}  // namespace ef
