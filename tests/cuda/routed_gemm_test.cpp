// routed_gemm() and group() against doubles computed from dequantised weights.
#include <climits>
#include <cmath>
#include <memory>

#include "expertflow/backend/cuda/device/group.cuh"
#include "tests/cuda/gemm_matrix.h"

namespace ef::cuda::testing {
namespace {

// Choices by expert, against a stable sort on the host.
void test_group(Random& random, int64_t assignments, int experts, int tile_rows, int wrong) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < assignments; ++i) ids.push_back(int32_t(random() % unsigned(experts + wrong)) - wrong / 2);
  std::vector<int32_t> order;
  std::vector<std::vector<int32_t>> tiles;
  for (int e = 0; e < experts; ++e) {
    const size_t first = order.size();
    for (int64_t i = 0; i < assignments; ++i)
      if (ids[size_t(i)] == e) order.push_back(int32_t(i));
    for (size_t at = first; at < order.size(); at += size_t(tile_rows))
      tiles.push_back({e, int32_t(at), int32_t(std::min(order.size() - at, size_t(tile_rows)))});
  }
  const int64_t most = most_tiles(assignments, experts, tile_rows);
  ASSERT_LE(int64_t(tiles.size()), most);
  const OnDevice<int32_t> chosen(ids), counts(std::vector<int32_t>(size_t(experts), -1)),
      places(std::vector<int32_t>(size_t(assignments), -1)), totals(std::vector<int32_t>(2, -1));
  const OnDevice<Tile> made{std::vector<Tile>(static_cast<size_t>(most))};
  GroupParams p;
  p.ids = chosen.data(), p.assignments = assignments, p.experts = experts, p.tile_rows = tile_rows;
  p.counts = counts.data(), p.order = places.data(), p.tiles = made.data(), p.totals = totals.data();
  ASSERT_EQ(group(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(totals.read(), (std::vector<int32_t>{int32_t(tiles.size()), int32_t(order.size())}));
  std::vector<int32_t> found = places.read();
  found.resize(order.size());
  EXPECT_EQ(found, order);
  const std::vector<Tile> got = made.read();
  for (size_t i = 0; i < tiles.size(); ++i)
    ASSERT_EQ((std::vector<int32_t>{got[i].group, got[i].first, got[i].rows}), tiles[i]) << "tile " << i;
}

TEST(Group, OrdersChoices) {
  Random random(8);
  test_group(random, 1, 1, 64, 0);
  test_group(random, 77, 3, 64, 0);
  test_group(random, 2500, 5, 128, 4);
  test_group(random, 300, 40, 64, 2);
  test_group(random, 90, 1500, 64, 100);  // more experts than a block has threads
  test_group(random, 40, 7, 8, 3);
  test_group(random, 128, 1024, 8, 50);
  test_group(random, 129, 12, 8, 2);
}

struct Routed {
  int64_t rows = 12, hidden = 64, ffn = 64;
  int experts = 5, top_k = 2;
  Fmt gate = Fmt::kQ8_0, up = Fmt::kQ8_0, down = Fmt::kQ8_0;
  Act act = Act::kSilu;
  float size = 1.f;  // of x
  bool bias = false, add = false;
  std::vector<int32_t> ids = {};  // random and distinct where empty
};

double activated(Act act, double alpha, double limit, double g, double u) {
  switch (act) {
    case Act::kSilu:
      return g / (1 + std::exp(-g)) * u;
    case Act::kGelu:
      return 0.5 * g * std::erfc(-g / std::sqrt(2.)) * u;
    case Act::kGeluTanh:
      return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
    default:
      g = std::min(g, limit), u = std::clamp(u, -limit, limit);
      return (u + 1) * g / (1 + std::exp(-alpha * g));
  }
}

std::vector<int32_t> distinct(Random& random, int64_t rows, int experts, int top_k) {
  std::vector<int32_t> ids, all;
  for (int e = 0; e < experts; ++e) all.push_back(e);
  for (int64_t r = 0; r < rows; ++r) {
    std::shuffle(all.begin(), all.end(), random);
    ids.insert(ids.end(), all.begin(), all.begin() + top_k);
  }
  return ids;
}

void test_routed(Random& random, const Routed& c, const std::string& where) {
  constexpr double kAlpha = 1.702, kLimit = 7, kAddScale = 0.5;
  std::vector<std::unique_ptr<Matrix>> gate, up, down;
  std::vector<ExpertEntry> entries;
  for (int e = 0; e < c.experts; ++e) {
    gate.push_back(std::make_unique<Matrix>(random, c.gate, c.ffn, c.hidden, c.bias));
    up.push_back(std::make_unique<Matrix>(random, c.up, c.ffn, c.hidden, c.bias));
    down.push_back(std::make_unique<Matrix>(random, c.down, c.hidden, c.ffn, c.bias));
    entries.push_back({gate.back()->weights(), up.back()->weights(), down.back()->weights()});
  }
  const std::vector<int32_t> ids = c.ids.empty() ? distinct(random, c.rows, c.experts, c.top_k) : c.ids;
  const std::vector<float> x = normal(random, c.rows * c.hidden, c.size), shares = normal(random, c.rows * c.top_k),
                           before = normal(random, c.rows * c.hidden);
  const OnDevice<ExpertEntry> table(entries);
  const OnDevice<int32_t> chosen(ids);
  const OnDevice<float> input(x), weights(shares), sum(before),
      out(std::vector<float>(size_t(c.rows * c.hidden), kNan));
  RoutedParams p;
  p.rows = c.rows, p.hidden = c.hidden, p.ffn = c.ffn, p.experts = c.experts, p.top_k = c.top_k;
  p.gate_format = c.gate, p.up_format = c.up, p.down_format = c.down;
  p.table = table.data(), p.ids = chosen.data(), p.weights = weights.data(), p.x = input.data(), p.out = out.data();
  p.activation.kind = c.act, p.activation.alpha = float(kAlpha), p.activation.limit = float(kLimit);
  if (c.add) p.add_to = sum.data(), p.add_scale = float(kAddScale);
  const OnDevice<uint8_t> scratch(std::vector<uint8_t>(routed_gemm_scratch(p), 0xff));
  p.scratch = scratch.data();
  ASSERT_EQ(routed_gemm(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  scratch.read();

  // Three products whose errors add up. What an expert gives may cancel in the sum: errors are measured against the
  // sum of magnitudes.
  const double unit = std::max({gate[0]->unit(), up[0]->unit(), down[0]->unit()});
  const std::vector<float> got = (c.add ? sum : out).read(), again = (c.add ? out : sum).read();
  for (const float v : again) ASSERT_TRUE(c.add ? std::isnan(v) : std::isfinite(v)) << "the other output was written";
  for (int64_t r = 0; r < c.rows; ++r) {
    const std::vector<double> row = doubles({x.begin() + r * c.hidden, x.begin() + (r + 1) * c.hidden});
    std::vector<double> want(size_t(c.hidden), 0.), found;
    double magnitude = 0;
    for (int k = 0; k < c.top_k; ++k) {
      const int32_t id = ids[size_t(r * c.top_k + k)];
      if (id < 0 || id >= c.experts) continue;
      std::vector<double> h;
      for (int64_t i = 0; i < c.ffn; ++i)
        h.push_back(
            activated(c.act, kAlpha, kLimit, gate[size_t(id)]->at(row.data(), i), up[size_t(id)]->at(row.data(), i)));
      double squares = 0;
      for (int64_t i = 0; i < c.hidden; ++i) {
        const double v = double(shares[size_t(r * c.top_k + k)]) * down[size_t(id)]->at(h.data(), i);
        want[size_t(i)] += v, squares += v * v;
      }
      magnitude += std::sqrt(squares);
    }
    double wrong = 0;
    for (int64_t i = 0; i < c.hidden; ++i) {
      const size_t at = size_t(r * c.hidden + i);
      const double expected = c.add ? double(before[at]) + kAddScale * want[size_t(i)] : want[size_t(i)];
      const double e = double(got[at]) - expected;
      wrong += e * e;
    }
    const double rounding = c.add ? 0x1p-22 * std::sqrt(double(c.hidden)) * 4 : 0;
    ASSERT_LE(std::sqrt(wrong), 4 * unit * magnitude + rounding) << where << ", row " << r;
  }
}

class RoutedFormats : public ::testing::TestWithParam<Fmt> {};
INSTANTIATE_TEST_SUITE_P(RoutedGemm, RoutedFormats, ::testing::ValuesIn(all_of_them()), name_of);

TEST_P(RoutedFormats, Whole) {
  Random random(9);
  Routed c;
  c.gate = c.up = c.down = GetParam();
  const int64_t block = info(GetParam()).block_elements;
  c.hidden = block == 1 ? 75 : block, c.ffn = block == 1 ? 43 : block;
  if (block == 32) c.hidden = 96;
  test_routed(random, c, "one format");
}

// Few rows of an expert: gate and up of some formats are made side by side.
TEST_P(RoutedFormats, Few) {
  Random random(22);
  Routed c;
  c.gate = c.up = c.down = GetParam();
  c.rows = 5, c.experts = 7, c.bias = c.add = true;
  const int64_t block = info(GetParam()).block_elements;
  c.hidden = block == 1 ? 139 : 2 * block, c.ffn = block == 1 ? 43 : block;
  test_routed(random, c, "few rows");
}

// Sums over ranks that a norm and a product take over, against the same three one after the other: to the last bit.
TEST(RoutedGemm, LeavesItsSums) {
  Random random(23);
  const int experts = 5, top_k = 3;
  for (const auto& [format, rows, hidden] :
       {std::tuple<Fmt, int64_t, int64_t>{Fmt::kQ4K, 5, 512}, {Fmt::kBF16, 16, 200}, {Fmt::kQ8_0, 32, 2080}}) {
    const int64_t ffn = 256, n = 70;
    std::vector<std::unique_ptr<Matrix>> matrices;
    std::vector<ExpertEntry> entries;
    for (int e = 0; e < experts; ++e) {
      for (const bool is_down : {false, false, true})
        matrices.push_back(
            std::make_unique<Matrix>(random, format, is_down ? hidden : ffn, is_down ? ffn : hidden, true));
      const size_t at = matrices.size() - 3;
      entries.push_back({matrices[at]->weights(), matrices[at + 1]->weights(), matrices[at + 2]->weights()});
    }
    std::vector<int32_t> ids = distinct(random, rows, experts, top_k);
    ids[1] = -1;
    const Matrix product(random, format, n, hidden, true);
    const OnDevice<ExpertEntry> table(entries);
    const OnDevice<int32_t> chosen(ids);
    const OnDevice<float> x(normal(random, rows * hidden)), weights(normal(random, rows * top_k)),
        norm_weight(normal(random, hidden));
    const std::vector<float> before = normal(random, rows * hidden);
    std::vector<float> outputs[2];
    for (const bool apart : {true, false}) {
      const std::vector<float> nothing(size_t(rows * hidden), kNan);
      const OnDevice<float> sum(before), normed(nothing), out(std::vector<float>(size_t(rows * n), kNan));
      RoutedParams p;
      p.rows = rows, p.hidden = hidden, p.ffn = ffn, p.experts = experts, p.top_k = top_k;
      p.gate_format = p.up_format = p.down_format = format;
      p.table = table.data(), p.ids = chosen.data(), p.weights = weights.data(), p.x = x.data();
      p.add_to = sum.data(), p.add_scale = 0.5f;
      const NormParams norm{false, rows, hidden, 1e-5f, norm_weight.data(), nullptr, sum.data(), normed.data()};
      GemmParams g;
      g.format = format, g.w = product.weights(), g.rows = rows, g.n = n, g.cols = hidden;
      g.x = normed.data(), g.x_stride = hidden, g.norm = &norm, g.out = out.data(), g.out_stride = n;
      const uint64_t bytes = std::max(routed_gemm_scratch(p), gemm_scratch(g));
      const OnDevice<uint8_t> scratch(std::vector<uint8_t>(bytes, 0xff));
      p.scratch = g.scratch = scratch.data();
      RankSums left;
      ASSERT_EQ(routed_gemm(p, nullptr, &left), cudaSuccess);
      ASSERT_NE(left.down, nullptr);
      if (apart) {
        ASSERT_EQ(rank_sums(left, nullptr), cudaSuccess);
      } else {
        g.sums = &left;
        ASSERT_TRUE(gemm_takes_sums(g));
      }
      ASSERT_EQ(gemm(g, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      scratch.read();
      for (const OnDevice<float>* part : {&sum, &normed, &out}) {
        const std::vector<float> numbers = part->read();
        outputs[apart].insert(outputs[apart].end(), numbers.begin(), numbers.end());
      }
      // Other rows than those of the sums, or no room for what is narrowed: not taken, and refused.
      left.room = gemm_scratch(g) - 1, g.sums = &left;
      EXPECT_FALSE(gemm_takes_sums(g));
      EXPECT_EQ(gemm(g, nullptr), cudaErrorInvalidValue);
      left.room = bytes, left.p.add_to = nullptr;
      EXPECT_FALSE(gemm_takes_sums(g));
    }
    for (const float v : outputs[1]) ASSERT_TRUE(std::isfinite(v));
    EXPECT_EQ(outputs[0], outputs[1]) << rows << " rows";
  }
}

TEST(RoutedGemm, FormatsMayDiffer) {
  Random random(10);
  Routed c;
  c.hidden = c.ffn = 256, c.experts = 3, c.rows = 7;
  c.gate = Fmt::kQ4K, c.up = Fmt::kQ5K, c.down = Fmt::kQ6K;
  test_routed(random, c, "k-quants");
  c.gate = Fmt::kBF16, c.up = Fmt::kQ8_0, c.down = Fmt::kF16;
  test_routed(random, c, "brain, bytes, halves");
  c.gate = Fmt::kF16, c.up = Fmt::kF16, c.down = Fmt::kBF16;
  test_routed(random, c, "halves, then brain");
}

TEST(RoutedGemm, ActivationsBiasesAndSums) {
  Random random(11);
  for (const Act act : {Act::kSilu, Act::kGelu, Act::kGeluTanh, Act::kClampedSwiglu}) {
    Routed c;
    c.act = act, c.bias = true, c.add = act != Act::kGelu, c.size = 3.f;
    test_routed(random, c, "activation " + std::to_string(int(act)));
  }
}

TEST(RoutedGemm, LargeNumbers) {
  Random random(12);
  Routed c;
  c.size = 1e6f;  // what is between the products is near 1e12
  test_routed(random, c, "1e6");
  c.gate = c.up = c.down = Fmt::kBF16;
  test_routed(random, c, "1e6, BF16");
}

TEST(RoutedGemm, OneExpertTakesAll) {
  Random random(13);
  Routed c;
  c.rows = 150, c.top_k = 1, c.experts = 4, c.hidden = c.ffn = 32;
  c.ids.assign(150, 2);
  test_routed(random, c, "tiles of 64");
  c.rows = 210, c.experts = 2;
  c.ids.assign(210, 1);
  test_routed(random, c, "tiles of 128");
}

TEST(RoutedGemm, OneRowTakesAllExperts) {
  Random random(14);
  Routed c;
  c.rows = 1, c.top_k = c.experts = 9, c.hidden = c.ffn = 32;
  test_routed(random, c, "one row");
}

TEST(RoutedGemm, ManyRowsOfEachExpert) {
  Random random(15);
  Routed c;
  c.rows = 200, c.experts = 3, c.top_k = 2, c.hidden = 64, c.ffn = 32;
  test_routed(random, c, "133 rows an expert");
}

TEST(RoutedGemm, ExpertsThatAreNone) {
  Random random(16);
  Routed c;
  c.rows = 4, c.experts = 3, c.top_k = 3;
  c.ids = {0, 3, 1, -1, INT_MAX, INT_MIN, 2, 2, -7, 1, 1, 1};  // and experts chosen more than once
  for (const bool add : {false, true}) {
    c.add = add;
    test_routed(random, c, "ids out of range");
  }
}

}  // namespace
}  // namespace ef::cuda::testing
