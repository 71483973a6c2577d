// Belady's bound against arithmetic by hand.
#include <gtest/gtest.h>

#include "expertflow/cache/clairvoyant.h"

namespace ef {
namespace {

// Layers of 4 experts each, with slots of the given sizes.
CacheGeometry geometry(std::initializer_list<uint64_t> slot_bytes) {
  CacheGeometry g;
  for (const uint64_t bytes : slot_bytes) g.layers.push_back({4, bytes});
  return g;
}

std::vector<LayerEvent> one_layer(std::initializer_list<ExpertId> experts) {
  std::vector<LayerEvent> events;
  for (const ExpertId e : experts) events.push_back({0, {e}});
  return events;
}

uint64_t missed(const CacheGeometry& g, const std::vector<LayerEvent>& events, uint64_t capacity, bool warm = false) {
  return clairvoyant_misses(g, events, capacity, warm).bytes_missed;
}

// 0 1 2 0 1 3 0 1 2 in two slots: 0 and 1 stay, 2 3 2 pass by: 0, 1, 2, 3, 2 miss.
TEST(Clairvoyant, KeepsWhatIsUsedSoonestAndLetsTheRestPass) {
  const auto events = one_layer({0, 1, 2, 0, 1, 3, 0, 1, 2});
  const ClairvoyantResult r = clairvoyant_misses(geometry({100}), events, 200, false);
  EXPECT_EQ(r.accesses, 9u);
  EXPECT_EQ(r.bytes_accessed, 900u);
  EXPECT_EQ(r.bytes_missed, 500u);
  // Three slots: 0, 1, 2 and 3 once each; 2 stays, since 3 is not used again.
  EXPECT_EQ(missed(geometry({100}), events, 300), 400u);
  // One slot: 0 1 2 0 1 3 0 1 2 has no neighbours alike, but 0 may stay all along: two of its three uses hit.
  EXPECT_EQ(missed(geometry({100}), events, 100), 700u);
}

// The cycle on which LRU never hits: 0 1 2 3 over and over. With k slots, each pass but the first finds k - 1 of 4
// (without bypass) or k (with).
TEST(Clairvoyant, CycleLongerThanTheCache) {
  const auto events = one_layer({0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3});
  EXPECT_EQ(missed(geometry({10}), events, 20), 120u - 2 * 20u);
  EXPECT_EQ(missed(geometry({10}), events, 0), 120u);
  EXPECT_EQ(missed(geometry({10}), events, 40), 40u);
  EXPECT_EQ(missed(geometry({10}), events, 1000), 40u);
}

TEST(Clairvoyant, AWarmStartHoldsWhatComesFirst) {
  const auto events = one_layer({0, 1, 2, 3, 0, 1, 2, 3});
  EXPECT_EQ(missed(geometry({10}), events, 40, true), 0u);
  // Two slots hold 0 and 1 from the start: 2 and 3 miss twice.
  EXPECT_EQ(missed(geometry({10}), events, 20, true), 40u);
}

// Layer 0: slots of 10; layer 1: slots of 30. Capacity 35: both of layer 0's (20) and half of layer 1's expert 0.
TEST(Clairvoyant, MixedSlotSizesAreCutInParts) {
  const std::vector<LayerEvent> events = {{0, {0, 1}}, {1, {0}}, {0, {0, 1}}, {1, {0}}};
  EXPECT_EQ(missed(geometry({10, 30}), events, 35), 20u + 30u + 0u + 15u);
  EXPECT_EQ(missed(geometry({10, 30}), events, 50), 50u);
}

// Two slots, {0, 1}, {2, 1}, {0}, {2}: in the second event 1 is used for the last time and makes room for 2.
TEST(Clairvoyant, AnEventsExpertsCompeteTogether) {
  const std::vector<LayerEvent> events = {{0, {0, 1}}, {0, {2, 1}}, {0, {0}}, {0, {2}}};
  EXPECT_EQ(missed(geometry({1}), events, 2), 3u);
}

TEST(Clairvoyant, NothingAskedNothingMissed) {
  EXPECT_EQ(clairvoyant_misses(geometry({10}), {}, 100, true).accesses, 0u);
}

// Against every possible sequence of evictions, over short random runs with slots of one size.
uint64_t fewest(const std::vector<ExpertId>& run, size_t at, unsigned resident, int slots) {
  if (at == run.size()) return 0;
  const unsigned bit = 1u << run[at];
  uint64_t best = UINT64_MAX;
  if (resident & bit) return fewest(run, at + 1, resident, slots);
  if (__builtin_popcount(resident) < slots) best = fewest(run, at + 1, resident | bit, slots);
  best = std::min(best, fewest(run, at + 1, resident, slots));  // bypass
  for (unsigned victim = 0; victim < 4; ++victim)
    if (resident & (1u << victim))
      best = std::min(best, fewest(run, at + 1, (resident & ~(1u << victim)) | bit, slots));
  return best + 1;
}

TEST(Clairvoyant, IsTheOptimumForSlotsOfOneSize) {
  uint32_t state = 7;
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<ExpertId> run;
    std::vector<LayerEvent> events;
    for (int i = 0; i < 9; ++i) {
      state = state * 1664525u + 1013904223u;
      run.push_back(ExpertId(state >> 30));
      events.push_back({0, {run.back()}});
    }
    for (int slots = 0; slots <= 3; ++slots)
      EXPECT_EQ(missed(geometry({1}), events, uint64_t(slots)), slots ? fewest(run, 0, 0, slots) : run.size())
          << trial << ", " << slots;
  }
}

}  // namespace
}  // namespace ef
