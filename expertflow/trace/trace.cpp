#include "expertflow/trace/trace.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "expertflow/base/errors.h"

namespace ef {

uint16_t stored_probability(float probability) {
  if (!(probability > 0.f)) return 0;
  return uint16_t(std::lround(std::min(probability, 1.f) * 65535.f));
}

void set_candidates(const TraceHeader& header, std::span<const float> probabilities, int64_t rows, TraceLayer& layer) {
  EF_DCHECK(rows > 0 && probabilities.size() % size_t(rows) == 0);
  const size_t experts = probabilities.size() / size_t(rows), count = size_t(header.candidates);
  EF_DCHECK(count <= experts);
  std::vector<uint16_t> order(experts);
  layer.candidates.clear();
  layer.probabilities.clear();
  for (size_t row = 0; row < size_t(rows); ++row) {
    const float* p = probabilities.data() + row * experts;
    std::iota(order.begin(), order.end(), uint16_t(0));
    std::partial_sort(order.begin(), order.begin() + std::ptrdiff_t(count), order.end(),
                      [&](uint16_t a, uint16_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
    for (size_t i = 0; i < count; ++i) {
      layer.candidates.push_back(order[i]);
      layer.probabilities.push_back(stored_probability(p[order[i]]));
    }
  }
}

TraceEvent trace_event(const TraceLayer& layer) {
  std::vector<uint16_t> all = layer.chosen;
  std::sort(all.begin(), all.end());
  TraceEvent event;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == 0 || all[i] != all[i - 1]) {
      event.experts.push_back(all[i]);
      event.rows.push_back(0);
    }
    ++event.rows.back();
  }
  return event;
}

}  // namespace ef
