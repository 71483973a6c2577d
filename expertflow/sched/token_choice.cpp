#include "expertflow/sched/token_choice.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>

namespace ef {

std::vector<size_t> choose_tokens(std::span<const WaitingToken> waiting, size_t count, int aging_threshold,
                                  const RoutingForecast& forecast) {
  std::vector<std::vector<ExpertKey>> far(waiting.size());  // what each token would have copied
  for (size_t i = 0; i < waiting.size(); ++i)
    for (const ExpertKey key : forecast.likely(waiting[i].sequence))
      if (!forecast.near(key)) far[i].push_back(key);

  std::unordered_set<ExpertKey> coming;
  std::vector<size_t> chosen;
  std::vector<bool> taken(waiting.size());
  const auto take = [&](size_t i) {
    taken[i] = true;
    chosen.push_back(i);
    coming.insert(far[i].begin(), far[i].end());
  };
  for (size_t i = 0; i < waiting.size(); ++i)
    if (waiting[i].deferred >= aging_threshold) take(i);
  while (chosen.size() < std::min(count, waiting.size())) {
    size_t best = 0;
    std::tuple<size_t, int, size_t> least{SIZE_MAX, 0, 0};
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (taken[i]) continue;
      const auto copies = size_t(
          std::count_if(far[i].begin(), far[i].end(), [&](const ExpertKey& key) { return !coming.contains(key); }));
      const std::tuple<size_t, int, size_t> cost{copies, -waiting[i].deferred, i};
      if (cost < least) least = cost, best = i;
    }
    take(best);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace ef
