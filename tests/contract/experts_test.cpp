// activation, experts, combine and the shared expert's gate against doubles, and what grouping must not change.
#include <algorithm>
#include <set>

#include "tests/contract/op_test.h"

namespace ef::testing {
namespace {

double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }

double act(const Activation& a, double g, double u) {
  switch (a.kind) {
    case ActivationKind::kSilu:
      return g * sigmoid(g) * u;
    case ActivationKind::kGelu:
      return 0.5 * g * (1 + std::erf(g / std::sqrt(2.0))) * u;
    case ActivationKind::kGeluTanh:
      return 0.5 * g * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g))) * u;
    case ActivationKind::kClampedSwiglu:
      g = std::min(g, double(a.limit));
      u = std::clamp(u, -double(a.limit), double(a.limit));
      return (u + 1) * g * sigmoid(double(a.alpha) * g);
  }
  return NAN;
}

constexpr ActivationKind kKinds[] = {ActivationKind::kSilu, ActivationKind::kGelu, ActivationKind::kGeluTanh,
                                     ActivationKind::kClampedSwiglu};

// One expert with the numbers of its matrices. Biases are optional.
struct TestExpert {
  TestMatrix gate, up, down;
  std::vector<float> gate_bias, up_bias, down_bias;
  std::vector<DeviceArray<float>> biases;
  ExpertView view() const {
    ExpertView v{gate.view, up.view, down.view};
    if (!biases.empty()) v.gate_bias = biases[0].data(), v.up_bias = biases[1].data(), v.down_bias = biases[2].data();
    return v;
  }
};

// Which assignments each expert serves, and in which calls.
using Groups = std::vector<std::pair<int, std::vector<int32_t>>>;

class Experts : public OpTest {
 protected:
  TestExpert expert(Random& random, Format gate_up, Format down, int64_t hidden, int64_t ffn, bool biased,
                    float deviation) {
    TestExpert e{matrix(random, gate_up, ffn, hidden, deviation),
                 matrix(random, gate_up, ffn, hidden, deviation),
                 matrix(random, down, hidden, ffn, deviation),
                 random.floats(ffn),
                 random.floats(ffn),
                 random.floats(hidden),
                 {}};
    if (biased) {
      e.biases.push_back(array(e.gate_bias));
      e.biases.push_back(array(e.up_bias));
      e.biases.push_back(array(e.down_bias));
    }
    return e;
  }

  static std::vector<float> run(Backend& backend, const Activation& activation, const std::vector<TestExpert>& experts,
                                const std::vector<Groups>& calls, const std::vector<float>& x, int top_k, float fill) {
    const int64_t hidden = experts[0].gate.view.cols, ffn = experts[0].gate.view.rows;
    const int64_t rows = int64_t(x.size()) / hidden;
    auto stream = backend.make_stream();
    DeviceArray<float> device_x(backend, x);
    DeviceArray<float> out(backend, std::vector<float>(size_t(rows * top_k * hidden), fill));
    for (const Groups& groups : calls) {
      std::vector<ExpertGroup> views;
      for (const auto& [e, assignments] : groups) views.push_back({experts[size_t(e)].view(), assignments});
      ExpertsArgs args;
      args.activation = activation;
      args.hidden = hidden, args.ffn = ffn, args.top_k = top_k;
      args.groups = views;
      args.x = device_x.data();
      args.out = out.data();
      backend.experts(*stream, args);
      stream->synchronize();
    }
    return out.read();
  }

  // Element i of expert e's answer to row x, and what float32 may miss it by.
  void expect_element(const Activation& activation, const TestExpert& e, const float* x, int64_t i, float got) {
    const int64_t hidden = e.gate.view.cols, ffn = e.gate.view.rows;
    const auto product = [&](const TestMatrix& m, int64_t r, double bias, double& error) {
      const auto w = m.row(r);
      double sum = bias, magnitude = std::fabs(bias);
      for (int64_t k = 0; k < hidden; ++k) {
        sum += double(w[size_t(k)]) * double(x[k]);
        magnitude += std::fabs(double(w[size_t(k)]) * double(x[k]));
      }
      error = std::max(8 * kUnit, product_unit(backend(), m.view.format)) * magnitude;
      return sum;
    };
    const auto down = e.down.row(i);
    const bool biased = !e.biases.empty();
    const double unit = std::max(8 * kUnit, product_unit(backend(), e.down.view.format));
    double want = biased ? double(e.down_bias[size_t(i)]) : 0, tolerance = 1e-7 * std::fabs(want);
    for (int64_t f = 0; f < ffn; ++f) {
      double gate_error, up_error;
      const double g = product(e.gate, f, biased ? double(e.gate_bias[size_t(f)]) : 0, gate_error);
      const double u = product(e.up, f, biased ? double(e.up_bias[size_t(f)]) : 0, up_error);
      const double h = act(activation, g, u);
      want += h * double(down[size_t(f)]);
      // |d act| is at most about 1.2 (|u| + 1) per unit of g and |g| + 1 per unit of u.
      const double error =
          1.2 * (std::fabs(u) + 1) * gate_error + (std::fabs(g) + 1) * up_error + 8 * kUnit * std::fabs(h);
      tolerance += std::fabs(double(down[size_t(f)])) * (error + unit * std::fabs(h));
    }
    ASSERT_NEAR(got, want, tolerance + 1e-12) << "element " << i;
  }
};

Groups one_call_groups(Random& random, int experts, int rows, int top_k) {
  Groups groups;
  for (int e = 0; e < experts; ++e) groups.push_back({e, {}});
  for (int r = 0; r < rows; ++r) {
    std::vector<int> ids(static_cast<size_t>(experts));
    for (int e = 0; e < experts; ++e) ids[size_t(e)] = e;
    random.shuffle(ids);
    for (int rank = 0; rank < top_k; ++rank) groups[size_t(ids[size_t(rank)])].second.push_back(r * top_k + rank);
  }
  return groups;
}

TEST_P(Experts, EveryFormatAgainstDoubles) {
  Random random(1);
  for (Format format : arithmetic_formats()) {
    const int64_t hidden = fitting_cols(format, 40), ffn = fitting_cols(format, 24);
    std::vector<TestExpert> experts;
    for (int e = 0; e < 3; ++e) experts.push_back(expert(random, format, format, hidden, ffn, e == 1, 0.3f));
    const auto x = random.floats(4 * hidden);
    const Groups groups = one_call_groups(random, 3, 4, 2);
    const auto got = run(backend(), Activation{}, experts, {groups}, x, 2, NAN);
    for (float v : got) ASSERT_FALSE(std::isnan(v));
    for (const auto& [e, assignments] : groups) {
      for (int32_t a : assignments) {
        for (int64_t i = 0; i < hidden; i += hidden / 8)
          expect_element(Activation{}, experts[size_t(e)], &x[size_t(a / 2 * hidden)], i, got[size_t(a * hidden + i)]);
      }
    }
    if (HasFatalFailure()) return;
  }
}

// As quantisers mix them: another format for down. Unaligned widths where the format has no blocks.
TEST_P(Experts, MixedFormatsAndOddWidths) {
  Random random(2);
  struct Case {
    Format gate_up, down;
    int64_t hidden, ffn;
  };
  for (const Case& c : {Case{Format::kQ4K, Format::kQ6K, 256, 512},
                        {Format::kBF16, Format::kF32, 37, 21},
                        {Format::kQ5_0, Format::kQ8_0, 64, 32},
                        {Format::kF16, Format::kBF16, 1, 3}}) {
    for (ActivationKind kind : kKinds) {
      Activation activation{kind};
      std::vector<TestExpert> experts;
      experts.push_back(expert(random, c.gate_up, c.down, c.hidden, c.ffn, true, 0.2f));
      const auto x = random.floats(3 * c.hidden);
      const auto got = run(backend(), activation, experts, {{{0, {0, 1, 2}}}}, x, 1, NAN);
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t i = 0; i < c.hidden; i += 1 + c.hidden / 5)
          expect_element(activation, experts[0], &x[size_t(r * c.hidden)], i, got[size_t(r * c.hidden + i)]);
      if (HasFatalFailure()) return;
    }
  }
}

// Experts as wide as those of Qwen3-30B, OLMoE, DeepSeek-V3 and gpt-oss.
TEST_P(Experts, ShapesOfRealModels) {
  struct Case {
    Format format;
    int64_t hidden, ffn;
    ActivationKind kind;
  };
  Random random(3);
  for (const Case& c : {Case{Format::kQ4K, 2048, 768, ActivationKind::kSilu},
                        {Format::kBF16, 2048, 1024, ActivationKind::kSilu},
                        {Format::kF8E4M3, 7168, 2048, ActivationKind::kSilu},
                        {Format::kMXFP4, 2880, 2880, ActivationKind::kClampedSwiglu}}) {
    std::vector<TestExpert> experts;
    experts.push_back(expert(random, c.format, c.format, c.hidden, c.ffn, false, 0.02f));
    const auto x = random.floats(2 * c.hidden);
    Activation activation{c.kind};
    const auto got = run(backend(), activation, experts, {{{0, {5, 9}}}}, x, 8, 0.f);
    // One whole element needs the hidden layer: a few million multiplications.
    const int64_t i = random.below(int(c.hidden));
    expect_element(activation, experts[0], x.data(), i, got[size_t(5 * c.hidden + i)]);
    if (HasFatalFailure()) return;
  }
}

// 256 experts, top-8: every assignment is served by its own expert, wherever it lies.
TEST_P(Experts, ManyExpertsEachServesItsOwn) {
  Random random(4);
  const int count = 256, rows = 9, top_k = 8;
  const int64_t hidden = 24, ffn = 16;
  std::vector<TestExpert> experts;
  for (int e = 0; e < count; ++e)
    experts.push_back(expert(random, Format::kBF16, Format::kBF16, hidden, ffn, e % 2, 0.3f));
  Groups groups = one_call_groups(random, count, rows, top_k);
  random.shuffle(groups);
  const auto x = random.floats(rows * hidden);
  const auto got = run(backend(), Activation{}, experts, {groups}, x, top_k, NAN);
  for (const auto& [e, assignments] : groups)
    for (int32_t a : assignments)
      for (int64_t i = 0; i < hidden; i += 5)
        expect_element(Activation{}, experts[size_t(e)], &x[size_t(a / top_k * hidden)], i,
                       got[size_t(a * hidden + i)]);
}

TEST_P(Experts, EmptyGroupsAndUntouchedRows) {
  Random random(5);
  std::vector<TestExpert> experts;
  for (int e = 0; e < 2; ++e) experts.push_back(expert(random, Format::kF32, Format::kF32, 8, 4, false, 1.f));
  const auto x = random.floats(2 * 8);
  EXPECT_EQ(run(backend(), Activation{}, experts, {{}}, x, 2, 3.f), std::vector<float>(32, 3.f));
  EXPECT_EQ(run(backend(), Activation{}, experts, {{{0, {}}, {1, {}}}}, x, 2, 3.f), std::vector<float>(32, 3.f));
  const auto got = run(backend(), Activation{}, experts, {{{0, {}}, {1, {2}}}}, x, 2, 3.f);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(got[i] == 3.f, i / 8 != 2) << i;
}

// One token on all experts; all tokens on one expert.
TEST_P(Experts, ExtremesOfBalance) {
  Random random(6);
  const int64_t hidden = 33, ffn = 17;
  std::vector<TestExpert> experts;
  Groups spread, heap{{0, {}}};
  for (int e = 0; e < 64; ++e) {
    experts.push_back(expert(random, Format::kF32, Format::kF32, hidden, ffn, false, 0.3f));
    spread.push_back({e, {e}});
  }
  const auto one = random.floats(hidden);
  const auto got = run(backend(), Activation{}, experts, {spread}, one, 64, NAN);
  for (int64_t e = 0; e < 64; e += 9)
    expect_element(Activation{}, experts[size_t(e)], one.data(), 3, got[size_t(e * hidden + 3)]);
  const auto many = random.floats(300 * hidden);
  for (int32_t a = 0; a < 300; ++a) heap[0].second.push_back(a);
  const auto all = run(backend(), Activation{}, experts, {heap}, many, 1, NAN);
  for (int64_t r = 0; r < 300; r += 37)
    expect_element(Activation{}, experts[0], &many[size_t(r * hidden)], 7, all[size_t(r * hidden + 7)]);
}

// So wide that few rows fit between the two halves at a time: a call goes in several waves, groups cut anywhere.
TEST_P(Experts, WideExpertsInWaves) {
  if (is_emulated(backend())) GTEST_SKIP() << "2^25 sums over a warp: minutes on an emulated device";
  Random random(12);
  const int64_t hidden = 2, ffn = 1 << 20;
  std::vector<TestExpert> experts;
  for (int e = 0; e < 2; ++e)
    experts.push_back(expert(random, Format::kBF16, Format::kBF16, hidden, ffn, false, 0.05f));
  const auto x = random.floats(11 * hidden);
  const Groups groups = {{0, {0, 2, 3, 4, 7}}, {1, {1, 5, 6, 8, 9, 10}}};
  const auto all = run(backend(), Activation{}, experts, {groups}, x, 1, NAN);
  std::vector<Groups> single_rows;
  for (const auto& [e, assignments] : groups)
    for (int32_t a : assignments) single_rows.push_back({{e, {a}}});
  EXPECT_TRUE(same_bits(run(backend(), Activation{}, experts, single_rows, x, 1, NAN), all));
  for (float v : all) EXPECT_FALSE(std::isnan(v));
}

// Groups may come in any order and in any number of calls (waves through few slots): the same bits.
TEST_P(Experts, BitIdenticalHoweverGroupsAreSplit) {
  Random random(7);
  for (Format format : {Format::kF32, Format::kBF16, Format::kQ4_0, Format::kMXFP4}) {
    const int64_t hidden = fitting_cols(format, 70), ffn = fitting_cols(format, 50);
    const int count = 6, rows = 23, top_k = 3;
    std::vector<TestExpert> experts;
    for (int e = 0; e < count; ++e) experts.push_back(expert(random, format, format, hidden, ffn, e % 2, 0.3f));
    const auto x = random.floats(rows * hidden);
    const Groups groups = one_call_groups(random, count, rows, top_k);
    const auto all = run(backend(), Activation{}, experts, {groups}, x, top_k, NAN);

    std::vector<Groups> one_by_one, halves(2), single_rows;
    for (const auto& [e, assignments] : groups) {
      one_by_one.push_back({{e, assignments}});
      const auto middle = assignments.begin() + long(assignments.size() / 3);
      halves[0].push_back({e, {assignments.begin(), middle}});
      halves[1].insert(halves[1].begin(), {e, {middle, assignments.end()}});
      for (int32_t a : assignments) single_rows.push_back({{e, {a}}});
    }
    Groups reversed = groups;
    std::reverse(reversed.begin(), reversed.end());
    for (auto& [e, assignments] : reversed) std::reverse(assignments.begin(), assignments.end());
    for (const auto& calls : {one_by_one, halves, single_rows, std::vector<Groups>{reversed}})
      EXPECT_TRUE(same_bits(run(backend(), Activation{}, experts, calls, x, top_k, NAN), all))
          << format_info(format).name;
    for (int threads : {1, 3, 8}) {
      ThreadPool pool(threads);
      auto other = GetParam().make(pool);
      EXPECT_TRUE(same_bits(run(*other, Activation{}, experts, {groups}, x, top_k, NAN), all)) << threads << " threads";
    }
  }
}

// An expert gives the bits that linear, activation and linear give: a dense layer and an expert agree.
TEST_P(Experts, BitIdenticalToLinearAndActivation) {
  Random random(8);
  for (ActivationKind kind : kKinds) {
    for (Format format : {Format::kBF16, Format::kQ4K}) {
      const int64_t hidden = fitting_cols(format, 45), ffn = fitting_cols(format, 37), rows = 5;
      std::vector<TestExpert> experts;
      experts.push_back(expert(random, format, format, hidden, ffn, true, 0.3f));
      const auto x = random.floats(rows * hidden);
      const auto all = run(backend(), Activation{kind}, experts, {{{0, {0, 1, 2, 3, 4}}}}, x, 1, NAN);
      const ExpertView e = experts[0].view();
      auto device_x = array(x);
      auto gate = output(rows * ffn), up = output(rows * ffn), out = output(rows * hidden);
      backend().linear(stream(), LinearArgs{e.gate, e.gate_bias, rows, device_x.data(), gate.data()});
      backend().linear(stream(), LinearArgs{e.up, e.up_bias, rows, device_x.data(), up.data()});
      backend().activation(stream(), ActivationArgs{Activation{kind}, rows * ffn, gate.data(), up.data(), gate.data()});
      backend().linear(stream(), LinearArgs{e.down, e.down_bias, rows, gate.data(), out.data()});
      stream().synchronize();
      EXPECT_TRUE(same_bits(out.read(), all)) << int(kind);
    }
  }
}

// gpt-oss: the limit, alpha and the (up + 1) act alike on every storage format, MXFP4 included.
TEST_P(Experts, C10_ClampActsOnEveryFormat) {
  const Activation activation{ActivationKind::kClampedSwiglu};
  for (Format format : arithmetic_formats()) {
    Random random(9);
    const int64_t hidden = fitting_cols(format, 64), ffn = fitting_cols(format, 32);
    std::vector<TestExpert> experts;
    experts.push_back(expert(random, format, format, hidden, ffn, true, 1.5f));
    const auto x = random.floats(2 * hidden, 2.f);
    const auto got = run(backend(), activation, experts, {{{0, {0, 1}}}}, x, 1, NAN);
    // The clamp has to matter here, or the test would prove nothing.
    int clamped = 0;
    for (int64_t f = 0; f < ffn; ++f) {
      double g = double(experts[0].gate_bias[size_t(f)]);
      const auto w = experts[0].gate.row(f);
      for (int64_t k = 0; k < hidden; ++k) g += double(w[size_t(k)]) * double(x[size_t(k)]);
      clamped += g > 7;
    }
    ASSERT_GT(clamped, 0) << format_info(format).name;
    for (int64_t i = 0; i < hidden; i += hidden / 16)
      expect_element(activation, experts[0], x.data(), i, got[size_t(i)]);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Experts, ActivationAgainstDoublesAndInPlace) {
  Random random(10);
  for (ActivationKind kind : kKinds) {
    for (int64_t n : {0, 1, 7, 8, 17, 200001}) {
      const Activation activation{kind};
      auto gate = random.floats(n, 6.f), up = random.floats(n, 6.f);
      const float special[] = {0.f,   -0.f,   7.f,    7.00001f, -7.f,  80.f,  -80.f,
                               100.f, -100.f, 1e-30f, -1e-6f,   300.f, -300.f};
      for (size_t i = 0; i < gate.size() && i < std::size(special); ++i) gate[i] = special[i];
      auto device_gate = array(gate), device_up = array(up);
      auto out = output(n);
      backend().activation(stream(), ActivationArgs{activation, n, device_gate.data(), device_up.data(), out.data()});
      backend().activation(stream(),
                           ActivationArgs{activation, n, device_gate.data(), device_up.data(), device_gate.data()});
      stream().synchronize();
      const auto got = out.read();
      EXPECT_TRUE(same_bits(device_gate.read(), got)) << "in place";
      for (size_t i = 0; i < got.size(); ++i) {
        const double want = act(activation, double(gate[i]), double(up[i]));
        // The tails of gelu are small differences or large exponents.
        const bool gelu = kind == ActivationKind::kGelu || kind == ActivationKind::kGeluTanh;
        const double scale = gelu ? 1e-7 * std::fabs(double(gate[i]) * double(up[i])) : 0;
        ASSERT_NEAR(got[i], want, 2e-6 * std::fabs(want) + scale + 1e-30)
            << int(kind) << ": " << gate[i] << ", " << up[i];
      }
    }
  }
}

TEST_P(Experts, ActivationKeepsNan) {
  for (ActivationKind kind : kKinds) {
    for (size_t bad : {size_t(0), size_t(13), size_t(18)}) {
      std::vector<float> gate(19, 1.f), up(19, 2.f);
      (bad % 2 ? gate : up)[bad] = NAN;
      auto device_gate = array(gate), device_up = array(up);
      auto out = output(19);
      backend().activation(stream(),
                           ActivationArgs{Activation{kind}, 19, device_gate.data(), device_up.data(), out.data()});
      stream().synchronize();
      const auto got = out.read();
      for (size_t i = 0; i < 19; ++i) EXPECT_EQ(std::isnan(got[i]), i == bad) << int(kind) << ", " << i;
    }
  }
}

TEST_P(Experts, CombineInRankOrder) {
  Random random(11);
  for (int top_k : {1, 2, 8}) {
    const int64_t rows = 5, hidden = 39;
    const auto in = random.floats(rows * top_k * hidden), weights = random.floats(rows * top_k);
    auto device_in = array(in), device_weights = array(weights);
    auto out = output(rows * hidden);
    backend().combine(stream(), CombineArgs{rows, hidden, top_k, device_in.data(), device_weights.data(), out.data()});
    stream().synchronize();
    const auto got = out.read();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < hidden; ++i) {
        double want = 0, magnitude = 0;
        for (int64_t k = 0; k < top_k; ++k) {
          const double term = double(weights[size_t(r * top_k + k)]) * double(in[size_t((r * top_k + k) * hidden + i)]);
          want += term, magnitude += std::fabs(term);
        }
        ASSERT_NEAR(got[size_t(r * hidden + i)], want, 4 * kUnit * magnitude);
      }
    }
  }
  // 2^24 + 1 + 1 in float32 depends on the order: rank order loses both ones.
  auto in = array(std::vector<float>{16777216.f, 1.f, 1.f});
  auto weights = array(std::vector<float>(3, 1.f));
  auto out = output(1);
  backend().combine(stream(), CombineArgs{1, 1, 3, in.data(), weights.data(), out.data()});
  stream().synchronize();
  EXPECT_EQ(out.read()[0], 16777216.f);
}

// Qwen2-MoE: the shared expert enters with sigmoid(gate . x), a factor a row.
TEST_P(Experts, C11_SharedExpertIsGated) {
  auto x = array(std::vector<float>{1, 2, 3, 4, 5, 6});
  auto y = array(std::vector<float>{10, 20, 30, 40, 50, 60});
  auto gate = array(std::vector<float>{0.f, std::log(3.f)});
  backend().gated_add(stream(), x.data(), y.data(), gate.data(), 2, 3);
  stream().synchronize();
  const auto got = x.read();
  const float want[] = {6, 12, 18, 34, 42.5f, 51};
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(got[i], want[i], 1e-5);
}

EF_FOR_EACH_BACKEND(Experts);

}  // namespace
}  // namespace ef::testing
