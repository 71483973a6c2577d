#include "expertflow/sched/token_choice.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>

namespace ef {
namespace {

// Of the tokens, longest deferred first: how many of the first the next one has to be among, `picks` being left, so
// that later steps can take all others in time.
size_t must_be_among(std::span<const WaitingToken> waiting, const std::vector<size_t>& by_age,
                     const std::vector<bool>& taken, size_t picks, const TokenChoice& choice) {
  size_t gone = 0;
  for (size_t n = 1; n <= by_age.size(); ++n) {
    const size_t i = by_age[n - 1];
    gone += taken[i] ? 1 : 0;
    const size_t more = size_t(std::max(0, choice.aging_threshold - waiting[i].deferred));
    if (n >= gone + more * choice.later + picks) return n;
  }
  return by_age.size();
}

// What each candidate would have copied, less what the chosen ones bring.
class Copies {
 public:
  Copies(std::span<const WaitingToken> waiting, std::span<const size_t> candidates, const RoutingForecast& forecast)
      : left_(waiting.size()), far_(waiting.size()) {
    for (const size_t i : candidates)
      for (const ExpertKey key : forecast.likely(waiting[i].sequence)) {
        if (forecast.near(key)) continue;
        far_[i].push_back(key);
        std::vector<size_t>& askers = askers_[key];
        if (!askers.empty() && askers.back() == i) continue;  // named twice
        askers.push_back(i);
        ++left_[i];
      }
  }
  size_t of(size_t i) const { return left_[i]; }
  void take(size_t i) {
    for (const ExpertKey key : far_[i]) {
      const auto it = askers_.find(key);
      if (it == askers_.end()) continue;
      for (const size_t other : it->second) --left_[other];
      askers_.erase(it);
    }
  }

 private:
  std::vector<size_t> left_;
  std::vector<std::vector<ExpertKey>> far_;
  std::unordered_map<ExpertKey, std::vector<size_t>> askers_;
};

}  // namespace

std::vector<size_t> choose_tokens(std::span<const WaitingToken> waiting, const TokenChoice& choice,
                                  const RoutingForecast* forecast) {
  std::vector<size_t> by_age(waiting.size());
  std::iota(by_age.begin(), by_age.end(), size_t(0));
  const auto at_threshold = [&](const WaitingToken& token) { return token.deferred >= choice.aging_threshold; };
  const auto overdue = size_t(std::count_if(waiting.begin(), waiting.end(), at_threshold));
  const size_t count = std::min(std::min(std::max(choice.count, overdue), choice.most), waiting.size());
  if (count == waiting.size()) return by_age;
  std::stable_sort(by_age.begin(), by_age.end(),
                   [&](size_t a, size_t b) { return waiting[a].deferred > waiting[b].deferred; });
  std::vector<size_t> chosen;
  if (!forecast || choice.window == 0) {
    chosen.assign(by_age.begin(), by_age.begin() + std::ptrdiff_t(count));
  } else {
    const size_t window = std::max(count, std::min(choice.window, by_age.size()));
    Copies copies(waiting, std::span(by_age).first(window), *forecast);
    std::vector<bool> taken(waiting.size());
    while (chosen.size() < count) {
      const size_t among = must_be_among(waiting, by_age, taken, count - chosen.size(), choice);
      size_t best = 0;
      std::tuple<size_t, int, size_t> least{SIZE_MAX, 0, 0};
      for (const size_t i : std::span(by_age).first(std::min(window, among))) {
        const std::tuple<size_t, int, size_t> cost{copies.of(i), -waiting[i].deferred, i};
        if (!taken[i] && cost < least) least = cost, best = i;
      }
      taken[best] = true;
      chosen.push_back(best);
      copies.take(best);
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace ef
