#include "expertflow/engine/row_groups.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ef {
namespace {

TEST(RowGroups, LikeRowsGoTogether) {
  // Two heaps, around 0 and around 10, in turns: rows 0, 2, 4 and 1, 3, 5.
  const std::vector<float> x = {0, 10, 1, 11, 0.5f, 10.5f};
  EXPECT_EQ(group_rows(x.data(), 6, 1, 3), (std::vector<int32_t>{0, 2, 4, 1, 3, 5}));
}

TEST(RowGroups, ABlockThatIsFullTakesNoMore) {
  // Four rows near 0, one near 10, blocks of three: the farthest of the four moves over. Seeds: row 0, then row 4.
  const std::vector<float> x = {0, 0.1f, 0.2f, 3, 10};
  EXPECT_EQ(group_rows(x.data(), 5, 1, 3), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(group_rows(x.data(), 5, 1, 8), (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

TEST(RowGroups, EveryRowOnce) {
  std::vector<float> x;
  for (int i = 0; i < 3 * 61; ++i) x.push_back(float((i * 7919) % 101));
  auto order = group_rows(x.data(), 61, 3, 16);
  ASSERT_EQ(order.size(), 61u);
  std::sort(order.begin(), order.end());
  for (int32_t r = 0; r < 61; ++r) EXPECT_EQ(order[size_t(r)], r);
}

}  // namespace
}  // namespace ef
