// The io_uring kind, and what stands in its place where liburing is missing.
#include "expertflow/base/read_progress.h"
#include "expertflow/base/read_queue.h"

#ifdef EF_HAVE_URING
#include <liburing.h>

#include <deque>
#endif

namespace ef {

#ifdef EF_HAVE_URING
namespace {

std::string errno_text(int error) { return fmt::format("{} (errno {})", std::strerror(error), error); }

class UringQueue final : public ReadQueue {
 public:
  explicit UringQueue(const ReadQueueOptions& options) : options_(options), in_flight_(size_t(options.depth)) {
    for (size_t i = in_flight_.size(); i-- > 0;) free_.push_back(i);
  }
  ~UringQueue() override {
    if (open_) io_uring_queue_exit(&ring_);
  }
  /// errno; 0: it works.
  int open() {
    if (const int error = options_.faults.create_ring ? options_.faults.create_ring() : 0) return error;
    // One thread waits for its own reads: no interrupt of it is needed to finish one (Linux 5.19).
    int result = io_uring_queue_init(unsigned(options_.depth), &ring_, IORING_SETUP_COOP_TASKRUN);
    if (result == -EINVAL) result = io_uring_queue_init(unsigned(options_.depth), &ring_, 0);
    open_ = result == 0;
    return -result;
  }

  std::string_view kind() const override { return "io_uring"; }

  std::string register_memory(std::span<std::byte> memory) override {
    if (memory.empty()) return "";
    if (!fixed_.empty()) io_uring_unregister_buffers(&ring_);
    fixed_.clear();
    constexpr size_t kMost = 1u << 30;  // the kernel's bound for one buffer
    for (size_t at = 0; at < memory.size(); at += kMost)
      fixed_.push_back({memory.data() + at, std::min(kMost, memory.size() - at)});
    const int injected = options_.faults.pin_memory ? options_.faults.pin_memory() : 0;
    const int result = injected ? -injected : io_uring_register_buffers(&ring_, fixed_.data(), unsigned(fixed_.size()));
    if (result == 0) return "";
    fixed_.clear();
    return errno_text(-result);
  }

  void read(std::span<const ReadRequest> requests, const std::function<void(size_t)>& done) override {
    PiecesOfReads pieces(requests, options_.read_bytes);
    std::deque<PieceOfRead> again;
    std::vector<size_t> ready;
    std::exception_ptr error;
    const auto guarded = [&](const auto& f) {
      try {
        f();
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    };
    for (;;) {
      while (!error && !free_.empty() && !(again.empty() && pieces.empty())) {
        const PieceOfRead piece = again.empty() ? pieces.take() : again.front();
        if (!again.empty()) again.pop_front();
        guarded([&] { start(piece, ready, pieces); });
      }
      // What has come is worked on while the kernel reads what was just asked for. (What it did not take, collect()
      // offers again.)
      if (!ready.empty()) io_uring_submit(&ring_);
      for (const size_t request : ready)
        if (!error) guarded([&] { done(request); });
      ready.clear();
      if (free_.size() == in_flight_.size()) {
        if (error || (again.empty() && pieces.empty())) break;
        continue;
      }
      collect([&](PieceOfRead& piece, int64_t result) {
        guarded([&] {
          if (piece.advance(result) == PieceOfRead::State::kAgain)
            again.push_back(piece);
          else if (pieces.finished(piece.request))
            ready.push_back(piece.request);
        });
      });
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  void start(const PieceOfRead& piece, std::vector<size_t>& ready, PiecesOfReads& pieces) {
    if (piece.file->descriptor() < 0) {  // not a file: no kernel to ask
      piece.file->source().read(piece.offset, {piece.to, size_t(piece.needed)});
      if (pieces.finished(piece.request)) ready.push_back(piece.request);
      return;
    }
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    EF_CHECK(sqe != nullptr, DeviceError, "io_uring: {} reads do not fit its queue", in_flight_.size());
    const size_t place = free_.back();
    free_.pop_back();
    in_flight_[place] = piece;
    const int fixed = fixed_index(piece);
    if (fixed >= 0)
      io_uring_prep_read_fixed(sqe, piece.file->descriptor(), piece.to, unsigned(piece.bytes), piece.offset, fixed);
    else
      io_uring_prep_read(sqe, piece.file->descriptor(), piece.to, unsigned(piece.bytes), piece.offset);
    io_uring_sqe_set_data64(sqe, place);
  }

  // Waits for one result at least; all that are there are taken.
  template <class F>
  void collect(const F& f) {
    int result = 0;
    while ((result = io_uring_submit_and_wait(&ring_, 1)) == -EINTR || result == -EAGAIN || result == -EBUSY) {
    }
    // The kernel still owns buffers then: there is no way on.
    if (result < 0) invariant_failed(std::strerror(-result), __FILE__, __LINE__);
    io_uring_cqe* cqe = nullptr;
    unsigned head = 0, seen = 0;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      const size_t place = size_t(io_uring_cqe_get_data64(cqe));
      PieceOfRead piece = in_flight_[place];
      free_.push_back(place);
      int64_t bytes = cqe->res;
      if (options_.faults.result) bytes = options_.faults.result(piece.offset, {piece.to, size_t(piece.bytes)}, bytes);
      f(piece, bytes);
      ++seen;
    }
    io_uring_cq_advance(&ring_, seen);
  }

  int fixed_index(const PieceOfRead& piece) const {
    for (size_t i = 0; i < fixed_.size(); ++i) {
      const auto* begin = static_cast<const std::byte*>(fixed_[i].iov_base);
      if (piece.to >= begin && piece.to + piece.bytes <= begin + fixed_[i].iov_len) return int(i);
    }
    return -1;
  }

  ReadQueueOptions options_;
  io_uring ring_{};
  bool open_ = false;
  std::vector<iovec> fixed_;
  std::vector<PieceOfRead> in_flight_;
  std::vector<size_t> free_;
};

}  // namespace

UringQueues make_uring_queues(int count, const ReadQueueOptions& options) {
  UringQueues out;
  for (int i = 0; i < count; ++i) {
    auto queue = std::make_unique<UringQueue>(options);
    if (const int error = queue->open()) return {{}, fmt::format("io_uring_setup: {}", errno_text(error))};
    out.queues.push_back(std::move(queue));
  }
  return out;
}
#else
UringQueues make_uring_queues(int, const ReadQueueOptions&) { return {{}, "not built in (liburing was not found)"}; }
#endif

}  // namespace ef
