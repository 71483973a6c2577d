#include "expertflow/predict/router_history.h"

#include <algorithm>

namespace ef {

RouterHistory::RouterHistory(int layers, int experts, const TrainedTensor& mean)
    : layers_(layers), experts_(experts), center_(mean.values) {}

void RouterHistory::begin_step(const StepStart& start) {
  const size_t size = 2 * size_t(layers_) * size_t(experts_);
  row_slot_.resize(size_t(start.rows()));
  for (size_t r = 0; r < row_slot_.size(); ++r) {
    const auto [it, fresh] = slot_of_.try_emplace(start.sequences[r], slot_of_.size());
    if (fresh) memory_.resize(slot_of_.size() * size);
    row_slot_[r] = it->second;
    if (start.positions[r] == 0) std::fill_n(memory_.begin() + std::ptrdiff_t(it->second * size), size, 0.f);
  }
}

void RouterHistory::observe(const StepView& view) {
  if (view.point != StepPoint::kRouted || size_t(view.rows) != row_slot_.size()) return;
  const float* center = &center_[size_t(view.layer) * size_t(experts_)];
  for (int64_t r = 0; r < view.rows; ++r) {
    const float* logits = view.logits + r * experts_;
    float* before = last(row_slot_[size_t(r)], view.layer);
    float* average = mean(row_slot_[size_t(r)], view.layer);
    for (int e = 0; e < experts_; ++e) {
      before[e] = logits[e] - center[e];
      average[e] = kDecay * average[e] + (1 - kDecay) * before[e];
    }
  }
}

void RouterHistory::features(int64_t row, LayerId layer, LayerId target, float* out) const {
  std::fill_n(out, kParts * experts_, 0.f);
  if (size_t(row) >= row_slot_.size()) return;
  const size_t slot = row_slot_[size_t(row)];
  std::copy_n(last(slot, target), experts_, out);
  if (target - 1 > layer) std::copy_n(last(slot, target - 1), experts_, out + experts_);
  if (target + 1 < layers_) std::copy_n(last(slot, target + 1), experts_, out + 2 * experts_);
  const float* average = last(slot, target) + size_t(layers_) * size_t(experts_);
  std::copy_n(average, experts_, out + 3 * experts_);
}

}  // namespace ef
