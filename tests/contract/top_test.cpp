// The largest numbers of rows, against sorting them all.
#include <algorithm>
#include <numeric>

#include "tests/contract/op_test.h"

namespace ef::testing {
namespace {

std::vector<BackendMaker> makers_with_top() {
  ThreadPool pool(1);
  std::vector<BackendMaker> makers = composition_makers();
  std::erase_if(makers, [&](const BackendMaker& maker) { return maker.make(pool)->most_top() == 0; });
  return makers;
}

using Top = OpTest;

void check(Backend& backend, Stream& stream, const std::vector<float>& x, int64_t rows, int top) {
  const int64_t width = int64_t(x.size()) / rows;
  const DeviceArray<float> in(backend, x);
  DeviceArray<int32_t> ids(backend, std::vector<int32_t>(size_t(rows * top), -7));
  DeviceArray<float> values(backend, std::vector<float>(size_t(rows * top), -7.f));
  backend.top(stream, {rows, width, top, in.data(), ids.data(), values.data()});
  stream.synchronize();
  const auto got_ids = ids.read();
  const auto got = values.read();
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = &x[size_t(r * width)];
    std::vector<int32_t> order(static_cast<size_t>(width));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      if (std::isnan(row[a]) != std::isnan(row[b])) return std::isnan(row[a]);
      if (std::isnan(row[a]) || row[a] == row[b]) return a < b;
      return row[a] > row[b];
    });
    for (int i = 0; i < top; ++i) {
      ASSERT_EQ(got_ids[size_t(r * top + i)], order[size_t(i)]) << "row " << r << ", rank " << i << ", width " << width;
      const float want = row[order[size_t(i)]], have = got[size_t(r * top + i)];
      ASSERT_TRUE(have == want || (std::isnan(want) && std::isnan(have))) << have << " for " << want;
    }
  }
}

TEST_P(Top, AgainstASort) {
  Random random(1);
  const int most = backend().most_top();
  for (const int64_t width : {1, 5, 63, 64, 1023, 1024, 1025, 5000, 40000, 151936})
    for (const int top : {1, 40, most})
      if (top <= width) check(backend(), stream(), random.floats(width * 2), 2, top);
}

TEST_P(Top, EqualsZerosAndInfinities) {
  Random random(2);
  std::vector<float> few = {0.f, -0.5f, 3.f, -INFINITY};
  std::vector<float> x(3000);
  for (float& v : x) v = few[size_t(random.below(int(few.size())))];
  check(backend(), stream(), x, 1, 64);
  check(backend(), stream(), std::vector<float>(2000, -INFINITY), 1, 10);
  x[1999] = INFINITY, x[77] = INFINITY;
  check(backend(), stream(), x, 1, 64);
}

TEST_P(Top, NotANumberIsSeen) {
  Random random(3);
  auto x = random.floats(2500);
  x[2400] = NAN, x[3] = NAN;
  check(backend(), stream(), x, 1, 5);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Top);
INSTANTIATE_TEST_SUITE_P(Backends, Top, ::testing::ValuesIn(makers_with_top()), backend_name);

}  // namespace
}  // namespace ef::testing
