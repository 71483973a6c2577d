#include "expertflow/base/read_queue.h"

#include <unistd.h>

#include "expertflow/base/read_progress.h"

namespace ef {
namespace {

class PreadQueue final : public ReadQueue {
 public:
  explicit PreadQueue(const ReadQueueOptions& options) : options_(options) {}
  std::string_view kind() const override { return "pread"; }
  std::string register_memory(std::span<std::byte>) override { return ""; }

  void read(std::span<const ReadRequest> requests, const std::function<void(size_t)>& done) override {
    PiecesOfReads pieces(requests, options_.read_bytes);
    while (!pieces.empty()) {
      PieceOfRead piece = pieces.take();
      if (piece.file->descriptor() < 0) {
        piece.file->source().read(piece.offset, {piece.to, size_t(piece.needed)});
      } else {
        while (piece.advance(read_once(piece)) == PieceOfRead::State::kAgain) {
        }
      }
      if (pieces.finished(piece.request)) done(piece.request);
    }
  }

 private:
  int64_t read_once(const PieceOfRead& piece) const {
    const ssize_t n = ::pread(piece.file->descriptor(), piece.to, size_t(piece.bytes), off_t(piece.offset));
    const int64_t result = n < 0 ? -errno : n;
    return options_.faults.result ? options_.faults.result(piece.offset, {piece.to, size_t(piece.bytes)}, result)
                                  : result;
  }

  ReadQueueOptions options_;
};

}  // namespace

std::unique_ptr<ReadQueue> make_pread_queue(const ReadQueueOptions& options) {
  return std::make_unique<PreadQueue>(options);
}

}  // namespace ef
