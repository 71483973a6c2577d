// routed_matvec() against doubles: the experts' halves one after the other, and the sum in rank order.
#include "tests/cuda/products.h"

namespace ef::cuda::testing {
namespace {

struct Case {
  Format gate = Format::kQ4K, up = Format::kQ4K, down = Format::kQ6K;
  Meet meet = Meet::kQ8;
  int64_t rows = 1, hidden = 256, ffn = 256;
  int experts = 6, top_k = 3;
  Act act = Act::kSilu;
  bool with_bias = false, add = false;
  std::vector<int32_t> ids;  // or drawn

  std::string name() const {
    const auto of = [](Format f) { return std::string(format_info(f).name); };
    return of(gate) + ", " + of(up) + ", " + of(down) + (meet == Meet::kQ8 ? " q8, " : " f32, ") +
           std::to_string(rows) + " rows, " + std::to_string(hidden) + " by " + std::to_string(ffn) + ", " +
           std::to_string(experts) + " experts";
  }
};

double activated(Act kind, double g, double u) {
  if (kind == Act::kClampedSwiglu) {
    g = std::min(g, 7.0), u = std::clamp(u, -7.0, 7.0);
    return (u + 1) * g / (1 + std::exp(-double(1.702f) * g));
  }
  return g / (1 + std::exp(-g)) * u;
}

struct Expert {
  Expert(const Case& c, uint32_t seed)
      : gate(c.gate, c.ffn, c.hidden, seed, c.with_bias, 0.08f),
        up(c.up, c.ffn, c.hidden, seed + 10, c.with_bias, 0.08f),
        down(c.down, c.hidden, c.ffn, seed + 20, c.with_bias, 0.08f) {}
  Stored gate, up, down;
};

// An expert's output for a row: values and how far float32 sums and rounded activations may be from them.
std::vector<Bounded> expert_output(const Case& c, const Expert& e, const std::vector<double>& x) {
  const bool rounded = rounds(c.meet, c.gate) && rounds(c.meet, c.up);
  const Taken in = take(x, rounded, true);
  std::vector<double> middle(size_t(c.ffn)), slack(size_t(c.ffn));
  for (int64_t i = 0; i < c.ffn; ++i) {
    const Bounded g = product(e.gate, i, in), u = product(e.up, i, in);
    middle[size_t(i)] = activated(c.act, g.value, u.value);
    // No activation is steeper than 1.13 in its gate.
    slack[size_t(i)] = 1.2 * (std::abs(u.value) + 1) * g.tolerance + (std::abs(g.value) + 0.1) * u.tolerance +
                       4e-6 * (std::abs(middle[size_t(i)]) + 0.01);
  }
  Taken between = take(middle, rounds(c.meet, c.down), false);
  for (int64_t i = 0; i < c.ffn; ++i) between.slack[size_t(i)] += slack[size_t(i)];
  std::vector<Bounded> out;
  for (int64_t i = 0; i < c.hidden; ++i) out.push_back(product(e.down, i, between));
  return out;
}

void check(Case c) {
  std::vector<std::unique_ptr<Expert>> experts;
  std::vector<ExpertEntry> entries;
  for (int e = 0; e < c.experts; ++e) {
    experts.push_back(std::make_unique<Expert>(c, uint32_t(100 + 50 * e)));
    entries.push_back(
        {experts[size_t(e)]->gate.weights(), experts[size_t(e)]->up.weights(), experts[size_t(e)]->down.weights()});
  }
  std::mt19937 engine(5);
  if (c.ids.empty())
    for (int64_t r = 0; r < c.rows; ++r) {
      std::vector<int32_t> all(size_t(c.experts));
      for (int e = 0; e < c.experts; ++e) all[size_t(e)] = e;
      std::shuffle(all.begin(), all.end(), engine);
      c.ids.insert(c.ids.end(), all.begin(), all.begin() + c.top_k);
    }
  const std::vector<float> x = normal(size_t(c.rows * c.hidden), 6), weights = normal(c.ids.size(), 7);
  const std::vector<float> before = c.add ? normal(size_t(c.rows * c.hidden), 8) : poisoned(c.rows * c.hidden);
  const OnDevice<ExpertEntry> table(entries);
  const OnDevice<int32_t> ids(c.ids);
  const OnDevice<float> device_x(x), device_weights(weights), out(before);
  RoutedParams p;
  p.meet = c.meet, p.rows = c.rows, p.hidden = c.hidden, p.ffn = c.ffn, p.experts = c.experts, p.top_k = c.top_k;
  p.gate_format = Fmt(c.gate), p.up_format = Fmt(c.up), p.down_format = Fmt(c.down);
  p.table = table.data(), p.ids = ids.data(), p.weights = device_weights.data(), p.x = device_x.data();
  p.activation.kind = c.act, p.activation.alpha = 1.702f, p.activation.limit = 7.f;
  (c.add ? p.add_to : p.out) = out.data();
  p.add_scale = 0.5f;
  const OnDevice<uint8_t> scratch(std::vector<uint8_t>(size_t(routed_matvec_scratch(p)), 0xff));
  p.scratch = scratch.data();
  ASSERT_EQ(routed_matvec(p, nullptr), cudaSuccess) << c.name();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  scratch.read();

  const std::vector<float> found = out.read();
  for (int64_t r = 0; r < c.rows; ++r) {
    std::vector<Bounded> sum(size_t(c.hidden));
    for (int k = 0; k < c.top_k; ++k) {
      const size_t a = size_t(r * c.top_k + k);
      if (c.ids[a] < 0 || c.ids[a] >= c.experts) continue;
      const auto of_expert = expert_output(c, *experts[size_t(c.ids[a])], doubles(x.data() + r * c.hidden, c.hidden));
      const double weight = double(weights[a]);
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i].value += weight * of_expert[i].value;
        sum[i].tolerance += std::abs(weight) * of_expert[i].tolerance + 4e-7 * std::abs(weight * of_expert[i].value);
      }
    }
    for (int64_t i = 0; i < c.hidden; ++i) {
      Bounded expected = sum[size_t(i)];
      const size_t at = size_t(r * c.hidden + i);
      if (c.add) {
        expected.value = double(before[at]) + 0.5 * expected.value;
        expected.tolerance += 1e-6 * std::abs(double(before[at]));
      }
      expect_near(found[at], expected, c.name() + ", row " + std::to_string(r) + ", column " + std::to_string(i));
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RoutedMatvec, EveryFormat) {
  for (const Format format : all_products())
    for (const Meet meet : {Meet::kQ8, Meet::kF32}) {
      Case c;
      c.gate = c.up = c.down = format, c.meet = meet, c.experts = 3, c.top_k = 2;
      check(c);
    }
}

TEST(RoutedMatvec, FormatsMayDiffer) {
  for (const int64_t rows : {1, 5}) {
    Case c;
    c.rows = rows;
    check(c);
    c.gate = Format::kQ8_0, c.up = Format::kQ4K, c.down = Format::kBF16;
    check(c);
    c.gate = Format::kF16, c.up = Format::kQ4K, c.down = Format::kQ4_0;
    check(c);
  }
}

TEST(RoutedMatvec, Shapes) {
  Case c;
  c.hidden = 512, c.ffn = 256, c.experts = 12, c.top_k = 10, c.with_bias = true;
  check(c);
  c.gate = c.up = c.down = Format::kQ8_0;
  c.hidden = 96, c.ffn = 160, c.experts = 5, c.top_k = 4;
  check(c);
  c.gate = c.up = c.down = Format::kBF16;
  c.hidden = 73, c.ffn = 45;
  check(c);
  c.rows = 6;
  check(c);
  c.hidden = 1030, c.ffn = 8, c.rows = 2;
  check(c);
}

TEST(RoutedMatvec, NumbersOfRows) {
  for (const int64_t rows : {1, 2, 3, 4, 5, 8, 17, 40}) {
    Case c;
    c.rows = rows, c.with_bias = rows % 2;
    c.gate = c.up = Format::kQ4_0, c.down = Format::kQ8_0, c.hidden = 64, c.ffn = 96;
    check(c);
    c.meet = Meet::kF32, c.add = true;
    check(c);
    c.experts = 24, c.top_k = 2;
    check(c);
  }
}

// One row with weights of 16 bits has kernels of its own: several lengths of slots, more experts than warps, some that
// are none.
TEST(RoutedMatvec, OneRowOfSixteenBits) {
  for (const Format format : {Format::kF16, Format::kBF16}) {
    Case c;
    c.gate = c.up = c.down = format;
    for (const auto& [hidden, ffn, top_k] : {std::tuple<int64_t, int64_t, int>{256, 256, 3},
                                             {512, 768, 8},
                                             {2048, 512, 2},
                                             {256, 1024, 11},
                                             {768, 1536, 1}}) {
      c.hidden = hidden, c.ffn = ffn, c.top_k = top_k, c.experts = 12;
      c.add = ffn != 768, c.with_bias = ffn >= 768, c.act = top_k == 2 ? Act::kClampedSwiglu : Act::kSilu;
      check(c);
    }
    c.hidden = c.ffn = 256, c.top_k = 4, c.ids = {3, -1, 12, 3};
    check(c);
  }
}

TEST(RoutedMatvec, AddsTo) {
  Case c;
  c.add = true, c.with_bias = true;
  for (const int64_t rows : {1, 7}) {
    c.rows = rows;
    check(c);
  }
}

TEST(RoutedMatvec, ClampedSwiglu) {
  Case c;
  c.act = Act::kClampedSwiglu, c.with_bias = true;
  c.gate = c.up = c.down = Format::kMXFP4, c.hidden = 160, c.ffn = 96;
  check(c);
  c.rows = 9;
  check(c);
}

// One expert several times in a row, all rows to one expert, and ids that are no expert's.
TEST(RoutedMatvec, UnusualChoices) {
  for (const int64_t rows : {2, 11}) {
    Case c;
    c.rows = rows, c.hidden = 64, c.ffn = 64, c.gate = c.up = c.down = Format::kQ5_1;
    c.ids.assign(size_t(rows * c.top_k), 4);
    check(c);
    for (size_t i = 0; i < c.ids.size(); ++i) c.ids[i] = i % 2 ? int32_t(i % 6) : i % 3 ? -1 : 6;
    check(c);
    c.gate = c.up = c.down = Format::kF32;
    check(c);
    c.ids.assign(size_t(rows * c.top_k), 1 << 30);
    check(c);
  }
}

}  // namespace
}  // namespace ef::cuda::testing
