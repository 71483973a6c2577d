#include "expertflow/measure/trace_load.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

namespace ef {

namespace {

// Distinct keys since the last use of one, by a tree of counts over the times of last uses.
class StackDistance {
 public:
  // Times of an event's experts count only after it: a layer asks for all of them at once.
  std::optional<uint32_t> since(ExpertKey key) const {
    const auto it = last_.find(key);
    if (it == last_.end()) return std::nullopt;
    return uint32_t(last_.size() - sum(it->second));  // keys whose last use is later
  }
  void use(ExpertKey key) {
    const auto [it, added] = last_.try_emplace(key, 0);
    if (!added) add(it->second, -1);
    it->second = ++time_;
    if (counts_.size() <= time_) grow();
    add(time_, 1);
  }

 private:
  static size_t low_bit(size_t i) { return i & (~i + 1); }
  uint32_t sum(size_t time) const {
    int64_t total = 0;
    for (size_t i = time; i > 0; i -= low_bit(i)) total += counts_[i];
    return uint32_t(total);
  }
  void add(size_t time, int by) {
    for (size_t i = time; i < counts_.size(); i += low_bit(i)) counts_[i] += by;
  }
  // Times are numbered anew when half of them are forgotten ones; the tree then doubles if it is still full.
  void grow() {
    std::vector<std::pair<size_t, ExpertKey>> order;
    for (const auto& [key, time] : last_) order.emplace_back(time, key);
    std::sort(order.begin(), order.end());
    counts_.assign(std::max<size_t>(1024, 4 * (order.size() + 1)), 0);
    time_ = 0;
    for (const auto& [time, key] : order) {
      last_[key] = ++time_;
      if (key == order.back().second) break;  // the newest is counted by use()
      add(time_, 1);
    }
  }

  std::unordered_map<ExpertKey, size_t> last_;
  std::vector<int32_t> counts_;
  size_t time_ = 0;
};

double median_of(std::vector<uint32_t>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return double(*middle);
}

void describe(LayerLoad& load, uint64_t rows, int top_k) {
  const auto experts = double(load.rows.size());
  double total = 0;
  for (const uint64_t n : load.rows) total += double(n);
  if (total == 0) return;
  const double mean = total / experts;
  double squares = 0;
  for (const uint64_t n : load.rows) {
    const double share = double(n) / total, chosen = double(n) / double(rows);
    if (n > 0) load.entropy -= share * std::log2(share);
    squares += (double(n) - mean) * (double(n) - mean);
    load.expected_shared += chosen * chosen;
  }
  load.entropy_share = experts > 1 ? load.entropy / std::log2(experts) : 1;
  load.variation = std::sqrt(squares / experts) / mean;
  load.uniform_shared = double(top_k) * top_k / experts;
}

class Reader {
 public:
  explicit Reader(TraceReader& trace) : trace_(trace) {
    const TraceHeader& header = trace.header();
    out_.top_k = header.top_k;
    for (size_t l = 0; l < header.layers.size(); ++l) {
      place_.push_back(int(out_.layers.size()));
      if (header.layers[l].experts == 0) continue;
      LayerLoad load;
      load.layer = LayerId(l);
      load.rows.resize(size_t(header.layers[l].experts));
      out_.experts += load.rows.size();
      out_.layers.push_back(std::move(load));
    }
    gaps_.resize(out_.layers.size());
    shared_.resize(out_.layers.size());
    pairs_.resize(out_.layers.size());
  }

  TraceLoad read() {
    TraceStep step;
    while (trace_.next(step)) {
      ++out_.steps;
      out_.rows += step.rows.size();
      for (const TraceRow& row : step.rows) requests_.insert(row.request);
      for (size_t l = 0; l < step.layers.size(); ++l)
        if (trace_.header().layers[l].experts > 0) add(LayerId(l), step);
    }
    out_.requests = requests_.size();
    for (size_t i = 0; i < out_.layers.size(); ++i) {
      describe(out_.layers[i], out_.rows, out_.top_k);
      out_.layers[i].median_gap = median_of(gaps_[i]);
      out_.layers[i].neighbour_shared = pairs_[i] > 0 ? double(shared_[i]) / double(pairs_[i]) : 0;
    }
    std::sort(out_.reuse.begin(), out_.reuse.end());
    return std::move(out_);
  }

 private:
  void add(LayerId l, const TraceStep& step) {
    const TraceLayer& layer = step.layers[size_t(l)];
    const auto i = size_t(place_[size_t(l)]);
    for (const uint16_t expert : layer.chosen) ++out_.layers[i].rows[expert];
    const TraceEvent event = trace_event(layer);
    out_.accesses += event.experts.size();
    for (const ExpertId expert : event.experts) {
      const auto distance = stack_.since({l, expert});
      if (distance)
        out_.reuse.push_back(*distance);
      else
        ++out_.first_uses;
      const auto [last, added] = last_step_.try_emplace({l, expert}, out_.steps);
      if (!added) gaps_[i].push_back(uint32_t(out_.steps - last->second));
      last->second = out_.steps;
    }
    for (const ExpertId expert : event.experts) stack_.use({l, expert});
    neighbours(l, i, step);
  }

  void neighbours(LayerId l, size_t i, const TraceStep& step) {
    const auto top_k = size_t(out_.top_k);
    const std::vector<uint16_t>& chosen = step.layers[size_t(l)].chosen;
    for (size_t r = 0; r < step.rows.size(); ++r) {
      std::vector<uint16_t> now(chosen.begin() + std::ptrdiff_t(r * top_k),
                                chosen.begin() + std::ptrdiff_t((r + 1) * top_k));
      std::vector<uint16_t>& before = before_[{step.rows[r].request, l}];
      if (!before.empty() && step.rows[r].position > 0) {
        ++pairs_[i];
        for (const uint16_t e : now) shared_[i] += std::find(before.begin(), before.end(), e) != before.end();
      }
      before = std::move(now);
    }
  }

  TraceReader& trace_;
  TraceLoad out_;
  std::vector<int> place_;  // by layer: its place among the sparse ones
  StackDistance stack_;
  std::unordered_map<ExpertKey, uint64_t> last_step_;
  std::vector<std::vector<uint32_t>> gaps_;
  std::vector<uint64_t> shared_, pairs_;
  std::set<uint64_t> requests_;
  std::map<std::pair<uint64_t, LayerId>, std::vector<uint16_t>> before_;  // a request's last row
};

}  // namespace

std::optional<uint32_t> TraceLoad::reuse_percentile(double share) const {
  if (reuse.empty()) return std::nullopt;
  const auto rank = size_t(std::ceil(share * double(reuse.size())));
  return reuse[std::min(std::max<size_t>(rank, 1), reuse.size()) - 1];
}

double TraceLoad::lru_hit_rate(uint64_t slots) const {
  if (accesses == 0) return 0;
  const auto end = std::lower_bound(reuse.begin(), reuse.end(), slots);
  return double(end - reuse.begin()) / double(accesses);
}

double TraceLoad::expected_distinct(int rows_at_once) const {
  double sum = 0;
  for (const LayerLoad& layer : layers)
    for (const uint64_t n : layer.rows)
      sum += 1 - std::pow(1 - double(n) / double(std::max<uint64_t>(1, rows)), rows_at_once);
  return layers.empty() ? 0 : sum / double(layers.size());
}

TraceLoad load_of(TraceReader& trace) { return Reader(trace).read(); }

}  // namespace ef
