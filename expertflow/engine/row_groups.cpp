#include "expertflow/engine/row_groups.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "expertflow/base/errors.h"

namespace ef {

std::vector<int32_t> group_rows(const float* x, int64_t rows, int64_t width, int64_t block) {
  EF_DCHECK(block >= 1);
  std::vector<int32_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  const auto groups = size_t((rows + block - 1) / block);
  if (groups < 2) return order;
  std::vector<std::vector<float>> distances;  // [groups][rows], squared
  std::vector<float> nearest(static_cast<size_t>(rows), std::numeric_limits<float>::max());
  int64_t seed = 0;
  while (distances.size() < groups) {
    auto& to_seed = distances.emplace_back(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      float sum = 0;
      for (int64_t i = 0; i < width; ++i) {
        const float d = x[r * width + i] - x[seed * width + i];
        sum += d * d;
      }
      to_seed[size_t(r)] = sum;
      nearest[size_t(r)] = std::min(nearest[size_t(r)], sum);
    }
    seed = std::max_element(nearest.begin(), nearest.end()) - nearest.begin();
  }
  // How much a row would lose by the second nearest.
  const auto preference = [&](int32_t r) {
    float best = std::numeric_limits<float>::max(), second = best;
    for (const auto& to_seed : distances) {
      const float d = to_seed[size_t(r)];
      second = std::min(second, std::max(best, d));
      best = std::min(best, d);
    }
    return second - best;
  };
  std::vector<float> preferences(static_cast<size_t>(rows));
  for (int32_t r = 0; r < rows; ++r) preferences[size_t(r)] = preference(r);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return preferences[size_t(a)] > preferences[size_t(b)]; });
  std::vector<std::vector<int32_t>> members(groups);
  const auto room = [&](size_t g) {
    return g + 1 < groups ? size_t(block) : size_t(rows - block * int64_t(groups - 1));
  };
  for (const int32_t r : order) {
    size_t best = groups;
    for (size_t g = 0; g < groups; ++g)
      if (members[g].size() < room(g) && (best == groups || distances[g][size_t(r)] < distances[best][size_t(r)]))
        best = g;
    members[best].push_back(r);
  }
  order.clear();
  for (auto& group : members) {
    std::sort(group.begin(), group.end());
    order.insert(order.end(), group.begin(), group.end());
  }
  return order;
}

}  // namespace ef
