// What both kinds of read queue share: cutting requests into reads, and judging what came back.
#pragma once
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "expertflow/base/errors.h"
#include "expertflow/base/read_queue.h"

namespace ef {

/// One read of at most read_bytes, part of a request; moves on as bytes come.
struct PieceOfRead {
  static constexpr int kMaxIdle = 16;  ///< results without progress before it fails

  size_t request = 0;
  const ReadFile* file = nullptr;
  uint64_t offset = 0;
  std::byte* to = nullptr;
  uint64_t bytes = 0, needed = 0;  ///< left to read; of them, left to come
  int idle = 0;

  enum class State { kComplete, kAgain };
  /// result: bytes or -errno. Throws DeviceError.
  State advance(int64_t result) {
    if (result < 0 && result != -EINTR && result != -EAGAIN)
      fail<DeviceError>("{}: reading {} bytes at offset {} failed: {}", file->name(), needed, offset,
                        std::strerror(int(-result)));
    if (result >= 0 && uint64_t(result) >= needed) return State::kComplete;
    EF_CHECK(result != 0, DeviceError, "{}: short read at offset {}: expected {} bytes, found 0 (file has {})",
             file->name(), offset, needed, file->source().size());
    if (result > 0) {
      // The next read must be aligned too, so a ragged end is read again.
      const uint64_t step = uint64_t(result) - uint64_t(result) % file->offset_alignment();
      if (step > 0) idle = 0;
      offset += step, to += step, bytes -= step, needed -= step;
    }
    EF_CHECK(++idle <= kMaxIdle, DeviceError, "{}: reading {} bytes at offset {}: {} attempts without progress: {}",
             file->name(), needed, offset, kMaxIdle, result < 0 ? std::strerror(int(-result)) : "short read");
    return State::kAgain;
  }
};

/// The reads of requests, in order.
class PiecesOfReads {
 public:
  PiecesOfReads(std::span<const ReadRequest> requests, uint64_t read_bytes)
      : requests_(requests), read_bytes_(read_bytes), left_(requests.size()) {
    for (size_t i = 0; i < requests.size(); ++i) left_[i] = std::max<uint64_t>(1, count(requests[i]));
  }

  bool empty() const { return next_ == requests_.size(); }
  PieceOfRead take() {
    const ReadRequest& r = requests_[next_];
    PieceOfRead piece{next_, r.file, r.offset + at_, r.to.data() + at_, std::min(read_bytes_, r.to.size() - at_), 0, 0};
    piece.needed = std::min(piece.bytes, r.needed - std::min(r.needed, at_));
    at_ += read_bytes_;
    if (at_ >= r.needed) ++next_, at_ = 0;
    return piece;
  }
  /// A piece of the request is complete; true if it was the last.
  bool finished(size_t request) { return --left_[request] == 0; }

 private:
  uint64_t count(const ReadRequest& r) const { return (r.needed + read_bytes_ - 1) / read_bytes_; }

  std::span<const ReadRequest> requests_;
  uint64_t read_bytes_;
  std::vector<uint64_t> left_;
  size_t next_ = 0;
  uint64_t at_ = 0;
};

}  // namespace ef
