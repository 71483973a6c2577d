#include "expertflow/predict/low_rank.h"

#include <fmt/format.h>

#include <array>

namespace ef {

std::string low_rank_name(LayerId layer, std::string_view part) {
  return fmt::format("{}.{}.{}", kLowRank, layer, part);
}

uint64_t low_rank_numbers(const LowRankSize& size, int hidden, int experts, int sources, int targets) {
  const auto rank = uint64_t(size.rank), units = uint64_t(size.units);
  const uint64_t of_source = rank * uint64_t(hidden) + rank + units * rank + units;
  const uint64_t of_target = uint64_t(experts) * (rank + units) + uint64_t(experts) + 1;
  return uint64_t(sources) * of_source + uint64_t(targets) * of_target;
}

uint64_t most_low_rank_numbers(uint64_t expert_numbers) {
  constexpr uint64_t kLarge = 1'000'000'000, kShare = 1000;
  return expert_numbers > kLarge ? expert_numbers / kShare : 0;
}

LowRankSize low_rank_size(int hidden, int experts, int sources, int targets, uint64_t most) {
  for (const int rank : std::array{64, 48, 32, 24, 16, 8, 4}) {
    const LowRankSize size{std::min(rank, hidden), rank};
    if (most == 0 || low_rank_numbers(size, hidden, experts, sources, targets) <= most) return size;
  }
  return {};
}

}  // namespace ef
