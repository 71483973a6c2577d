// S3-FIFO (Yang et al., SOSP 2023): new experts enter a small queue of a tenth of the slots; those that were asked for
// again before they reach its end move to the main queue, the others leave and are remembered for as many evictions as
// there are slots; who comes back while remembered enters the main queue at once. The main queue gives everybody who
// was asked for since the last round another round.
#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_map>

#include "expertflow/cache/policy_table.h"

namespace ef {
namespace {

constexpr double kSmallShare = 0.1;
constexpr uint8_t kMostUses = 3;

class S3FifoPolicy final : public HistoryPolicy {
 public:
  using HistoryPolicy::HistoryPolicy;
  std::string_view name() const override { return "s3-fifo"; }

  void on_access(const AccessEvent& event) override {
    HistoryPolicy::on_access(event);
    for (const ExpertId expert : event.experts) {
      Page& page = pages_[{event.layer, expert}];
      if (page.resident) page.uses = uint8_t(std::min<int>(page.uses + 1, kMostUses));
    }
  }
  void on_insert(ExpertKey key) override {
    HistoryPolicy::on_insert(key);
    Page& page = pages_[key];
    const bool remembered = page.left > 0 && evictions_ - page.left < slots_;
    page = {true, !remembered, 0, {events(), 0}, 0};
    slots_ = std::max(slots_, ++residents_);
  }
  void on_evict(ExpertKey key) override {
    // What the queues' rule passed over before it came to this one has had its round.
    Queues queues = queues_of();
    while (const auto victim = next(queues)) {
      if (*victim == key) break;
    }
    for (const auto& [moved, page] : queues.changed) pages_[moved] = page;
    moves_ = queues.moves;
    HistoryPolicy::on_evict(key);
    Page& page = pages_[key];
    page.left = page.small ? ++evictions_ : 0;
    page.resident = false;
    --residents_;
  }
  void rank_victims(LayerId, std::vector<ExpertKey>& out) override {
    out.clear();
    Queues queues = queues_of();
    while (const auto victim = next(queues)) out.push_back(*victim);
  }

 protected:
  VictimScore score(ExpertKey, const ExpertHistory&, LayerId) const override { return {}; }

 private:
  using Place = std::pair<uint64_t, uint64_t>;  // event, and number of the move after it
  struct Page {
    bool resident = false, small = false;
    uint8_t uses = 0;  // since it came, or since its last round
    Place place;
    uint64_t left = 0;  // number of its eviction from the small queue
  };
  struct Queues {
    std::deque<ExpertKey> small, main;
    size_t target = 0;
    uint64_t moves = 0;
    std::unordered_map<ExpertKey, Page> changed;
  };
  Queues queues_of();
  std::optional<ExpertKey> next(Queues& queues);

  std::unordered_map<ExpertKey, Page> pages_;
  size_t residents_ = 0, slots_ = 0;
  uint64_t evictions_ = 0, moves_ = 0;
};

S3FifoPolicy::Queues S3FifoPolicy::queues_of() {
  Queues queues;
  std::vector<std::pair<Place, ExpertKey>> ordered;
  for_residents([&](ExpertKey key, const ExpertHistory&) { ordered.push_back({pages_.at(key).place, key}); });
  std::sort(ordered.begin(), ordered.end());
  for (const auto& [place, key] : ordered) (pages_.at(key).small ? queues.small : queues.main).push_back(key);
  queues.target = size_t(kSmallShare * double(slots_));
  queues.moves = moves_;
  return queues;
}

std::optional<ExpertKey> S3FifoPolicy::next(Queues& queues) {
  while (!queues.small.empty() || !queues.main.empty()) {
    const bool from_small = !queues.small.empty() && (queues.small.size() > queues.target || queues.main.empty());
    auto& queue = from_small ? queues.small : queues.main;
    const ExpertKey key = queue.front();
    queue.pop_front();
    const auto it = queues.changed.find(key);
    Page page = it == queues.changed.end() ? pages_.at(key) : it->second;
    if (page.uses == 0) return key;
    page.uses = from_small ? uint8_t(0) : uint8_t(page.uses - 1);
    page.small = false;
    page.place = {events(), ++queues.moves};
    queues.changed[key] = page;
    queues.main.push_back(key);
  }
  return std::nullopt;
}

}  // namespace

std::unique_ptr<EvictionPolicy> make_s3_fifo(const PolicyContext& context) {
  return std::make_unique<S3FifoPolicy>(context);
}

}  // namespace ef
