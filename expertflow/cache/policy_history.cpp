#include "expertflow/cache/policy_history.h"

#include <algorithm>

#include "expertflow/base/errors.h"

namespace ef {

ExpertHistory& HistoryPolicy::at(ExpertKey key) {
  EF_DCHECK(key.layer >= 0 && key.expert >= 0);
  const size_t layer = size_t(key.layer), expert = size_t(key.expert);
  if (history_.size() <= layer) {
    history_.resize(layer + 1);
    passes_.resize(layer + 1);
    layers_ = std::max(layers_, key.layer + 1);
  }
  auto& row = history_[layer];
  if (row.size() <= expert) row.resize(expert + 1);
  return row[expert];
}

void HistoryPolicy::on_access(const AccessEvent& event) {
  step_ = std::max(step_, event.step);
  ++events_;
  ++counters_.events;
  forget_prediction(event.layer);
  for (size_t i = 0; i < event.experts.size(); ++i) {
    ExpertHistory& history = at({event.layer, event.experts[i]});
    if (i == 0) ++passes_[size_t(event.layer)];  // after at(): the row exists
    history.last_event = events_;
    history.last_pass = passes_[size_t(event.layer)];
    count_access(history);
    ++counters_.accesses;
  }
}

void HistoryPolicy::on_insert(ExpertKey key) {
  ExpertHistory& history = at(key);
  EF_DCHECK(!history.resident);
  history.resident = true;
  history.place = uint32_t(residents_.size());
  // One that comes before it is asked for (prefetch) counts as just used, or it would leave before its turn.
  history.last_event = events_;
  history.last_pass = passes_[size_t(key.layer)];
  residents_.push_back(key);
  ++counters_.insertions;
}

void HistoryPolicy::on_evict(ExpertKey key) {
  ExpertHistory& history = at(key);
  EF_DCHECK(history.resident);
  const ExpertKey moved = residents_.back();
  residents_[history.place] = moved;
  at(moved).place = history.place;
  residents_.pop_back();
  history.resident = false;
  ++counters_.evictions;
}

void HistoryPolicy::on_prediction(std::span<const std::pair<ExpertKey, float>> ranked) {
  for (const auto& [key, probability] : ranked) forget_prediction(key.layer);
  for (const auto& [key, probability] : ranked) {
    if (predictions_.size() <= size_t(key.layer)) predictions_.resize(size_t(key.layer) + 1);
    predicted_layers_ += !predictions_[size_t(key.layer)];
    predictions_[size_t(key.layer)] = true;
    predicted_[key] = probability;
  }
}

void HistoryPolicy::forget_prediction(LayerId layer) {
  if (!layer_predicted(layer)) return;
  predictions_[size_t(layer)] = false;
  --predicted_layers_;
  std::erase_if(predicted_, [&](const auto& entry) { return entry.first.layer == layer; });
}

uint64_t HistoryPolicy::distance(LayerId layer, LayerId current) const {
  const int64_t around = (int64_t(layer) - current) % layers_;
  return uint64_t(around <= 0 ? around + layers_ : around);
}

void HistoryPolicy::rank_victims(LayerId current, std::vector<ExpertKey>& out) {
  ranking_.clear();
  for (const ExpertKey key : residents_) ranking_.emplace_back(score(key, at(key), current), key);
  std::sort(ranking_.begin(), ranking_.end());
  out.clear();
  for (const auto& [score, key] : ranking_) out.push_back(key);
}

}  // namespace ef
