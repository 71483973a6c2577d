// matvec(), gated_matvec() and route_linear() against sums of doubles over the numbers that the formats hold.
#include "tests/cuda/products.h"

namespace ef::cuda::testing {
namespace {

struct Norm {
  bool on = false, centred = false, bias = false;
};

std::vector<double> normalised(const float* x, int64_t n, const Norm& norm, const std::vector<float>& weight,
                               const std::vector<float>& bias, float eps) {
  std::vector<double> out = doubles(x, n);
  if (!norm.on) return out;
  double mean = 0, squares = 0;
  if (norm.centred) {
    for (const double v : out) mean += v;
    mean /= double(n);
  }
  for (const double v : out) squares += (v - mean) * (v - mean);
  const double scale = 1 / std::sqrt(squares / double(n) + double(eps));
  for (int64_t i = 0; i < n; ++i) {
    out[size_t(i)] = (out[size_t(i)] - mean) * scale * double(weight[size_t(i)]);
    if (norm.bias) out[size_t(i)] += double(bias[size_t(i)]);
  }
  return out;
}

struct Case {
  std::vector<Format> formats = {Format::kF32};
  std::vector<int64_t> n = {37};
  int64_t cols = 512;
  int rows = 1;
  Meet meet = Meet::kQ8;
  Norm norm;
  bool with_bias = false, add = false;
  int64_t more_stride = 0;

  std::string name(size_t i) const {
    return std::string(format_info(formats[i]).name) + (meet == Meet::kQ8 ? " q8" : " f32") + ", " +
           std::to_string(rows) + " rows of " + std::to_string(cols) + " to " + std::to_string(n[i]);
  }
};

// The input on the device, and its rows as the product is to see them.
struct Activations {
  explicit Activations(const Case& c)
      : stride(c.cols + c.more_stride),
        host(normal(size_t(c.rows * stride), 7)),
        weight(normal(size_t(c.cols), 8)),
        bias(normal(size_t(c.cols), 9)),
        x(host),
        device_weight(weight),
        device_bias(bias),
        normed(poisoned(c.rows * c.cols)) {
    for (int r = 0; r < c.rows; ++r)
      rows.push_back(normalised(host.data() + r * stride, c.cols, c.norm, weight, bias, kEps));
    in.x = x.data(), in.stride = stride;
    if (!c.norm.on) return;
    in.norm_weight = device_weight.data();
    if (c.norm.bias) in.norm_bias = device_bias.data();
    in.centred = c.norm.centred, in.eps = kEps, in.normed = normed.data();
  }
  void check_normed(const Case& c) const {
    if (!c.norm.on) return;
    const std::vector<float> found = normed.read();
    for (int r = 0; r < c.rows; ++r)
      for (int64_t i = 0; i < c.cols; ++i) {
        const double expected = rows[size_t(r)][size_t(i)];
        expect_near(found[size_t(r * c.cols + i)], {expected, 2e-6 * std::abs(expected) + 1e-6}, "normed");
      }
  }

  static constexpr float kEps = 1e-5f;
  int64_t stride;
  std::vector<float> host, weight, bias;
  OnDevice<float> x, device_weight, device_bias, normed;
  std::vector<std::vector<double>> rows;
  Input in;
};

void check(const Case& c) {
  const Activations a(c);
  MatvecParams p;
  p.meet = c.meet, p.rows = c.rows, p.cols = c.cols, p.in = a.in, p.count = int(c.formats.size());
  std::vector<std::unique_ptr<Stored>> w;
  std::vector<std::unique_ptr<OnDevice<float>>> out;
  std::vector<std::vector<float>> before;
  for (size_t i = 0; i < c.formats.size(); ++i) {
    w.push_back(std::make_unique<Stored>(c.formats[i], c.n[i], c.cols, uint32_t(20 + 10 * i), c.with_bias));
    const int64_t outputs = c.rows * c.n[i];
    before.push_back(c.add ? normal(size_t(outputs), 11) : poisoned(outputs));
    out.push_back(std::make_unique<OnDevice<float>>(before.back()));
    p.product[i] = {w[i]->fmt(), w[i]->weights(), c.n[i], c.add ? nullptr : out[i]->data()};
  }
  if (c.add) p.add_to = out[0]->data(), p.add_scale = -0.75f;
  ASSERT_EQ(matvec(p, nullptr), cudaSuccess) << c.name(0);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  a.check_normed(c);
  for (size_t i = 0; i < c.formats.size(); ++i) {
    const std::vector<float> found = out[i]->read();
    for (int r = 0; r < c.rows; ++r) {
      const Taken x = take(a.rows[size_t(r)], rounds(c.meet, c.formats[i]), !c.norm.on);
      for (int64_t row = 0; row < c.n[i]; ++row) {
        Bounded expected = product(*w[i], row, x);
        const size_t at = size_t(r * c.n[i] + row);
        if (c.norm.on) expected.tolerance += 4e-6 * std::abs(expected.value);
        if (c.add) {
          expected.value = double(before[i][at]) - 0.75 * expected.value;
          expected.tolerance += 1e-6 * std::abs(double(before[i][at]));
        }
        expect_near(found[at], expected, c.name(i) + ", row " + std::to_string(r) + ", output " + std::to_string(row));
      }
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Matvec, EveryFormatInIntegersAndFloats) {
  for (const Format format : all_products())
    for (const Meet meet : {Meet::kQ8, Meet::kF32})
      for (const int rows : {1, 3, 8}) {
        Case c;
        c.formats = {format}, c.meet = meet, c.rows = rows;
        check(c);
      }
}

TEST(Matvec, EveryNumberOfRows) {
  for (int rows = 1; rows <= kMatvecRows; ++rows)
    for (const Format format : {Format::kQ4K, Format::kBF16}) {
      Case c;
      c.formats = {format}, c.rows = rows, c.cols = 768, c.n = {19};
      check(c);
    }
}

TEST(Matvec, WidthsOfBlocks) {
  for (const auto& [format, step] : {std::pair{Format::kQ4K, 256},
                                     {Format::kQ6K, 256},
                                     {Format::kQ3K, 256},
                                     {Format::kQ8_0, 32},
                                     {Format::kMXFP4, 32},
                                     {Format::kQ5_0, 32}})
    for (const int blocks : {1, 2, 3, 5, 8, 11, 16, 33}) {
      Case c;
      c.formats = {format}, c.cols = step * blocks, c.n = {21}, c.rows = blocks % 2 + 1;
      check(c);
      c.meet = Meet::kF32;
      check(c);
    }
}

TEST(Matvec, OddWidthsOfScalars) {
  for (const Format format : {Format::kF32, Format::kF16, Format::kBF16, Format::kF8E4M3})
    for (const int64_t cols : {1, 3, 8, 31, 129, 250, 1000, 2049}) {
      Case c;
      c.formats = {format}, c.cols = cols, c.n = {7}, c.rows = cols % 2 ? 1 : 4;
      check(c);
    }
}

TEST(Matvec, ManyAndFewOutputs) {
  for (const int64_t n : {1, 2, 5, 64, 301, 1030})
    for (const Format format : {Format::kQ4K, Format::kQ6K, Format::kBF16}) {
      Case c;
      c.formats = {format}, c.n = {n}, c.cols = 512, c.rows = n < 64 ? 2 : 1, c.with_bias = true;
      check(c);
    }
}

// Warps that share a row: few outputs, several segments.
TEST(Matvec, LongRows) {
  for (const Format format : {Format::kQ4K, Format::kQ8_0, Format::kBF16, Format::kF8E4M3})
    for (const int64_t n : {1, 3, 16}) {
      Case c;
      c.formats = {format}, c.n = {n}, c.cols = 16640, c.rows = int(n % 8);
      if (c.rows == 0) c.rows = 8;
      check(c);
    }
}

TEST(Matvec, ThreeMatricesOfOneInput) {
  for (const int rows : {1, 2, 5}) {
    Case c;
    c.formats = {Format::kQ4K, Format::kQ4K, Format::kQ6K}, c.n = {130, 24, 24}, c.cols = 768, c.rows = rows;
    c.norm.on = true, c.with_bias = true;
    check(c);
    c.formats = {Format::kBF16, Format::kF32, Format::kQ8_0};
    check(c);
  }
}

TEST(Matvec, Norms) {
  for (const Norm norm : {Norm{true, false, false}, {true, true, true}, {true, true, false}})
    for (const Format format : {Format::kQ5K, Format::kF16})
      for (const int rows : {1, 4}) {
        Case c;
        c.formats = {format}, c.norm = norm, c.rows = rows, c.cols = 1280, c.n = {9}, c.more_stride = 3;
        check(c);
      }
  Case odd;
  odd.formats = {Format::kF32}, odd.norm.on = true, odd.cols = 77, odd.rows = 3;
  check(odd);
}

TEST(Matvec, AddsTo) {
  for (const Format format : {Format::kQ4_0, Format::kF32})
    for (const int rows : {1, 6}) {
      Case c;
      c.formats = {format}, c.rows = rows, c.add = true, c.with_bias = true;
      check(c);
    }
}

// One row with weights of 16 bits has a kernel of its own: parts of long rows, fewer and more rows than warps.
TEST(Matvec, OneRowOfSixteenBits) {
  for (const Format format : {Format::kF16, Format::kBF16}) {
    for (const int64_t cols : {256, 768, 1024, 2048, 4096, 8192})
      for (const int64_t n : {1, 6, 700}) {
        Case c;
        c.formats = {format}, c.cols = cols, c.n = {n}, c.with_bias = n == 6, c.add = n == 700;
        check(c);
      }
    Case c;
    c.formats = {format, format, format}, c.n = {290, 33, 1}, c.cols = 2048, c.norm.on = true, c.with_bias = true;
    check(c);
    c.formats.pop_back(), c.n.pop_back(), c.cols = 512;
    check(c);
  }
}

// More activations than shared memory takes at once.
TEST(Matvec, WideActivationsGoInParts) {
  Case c;
  c.formats = {Format::kF16}, c.cols = 20000, c.rows = 8, c.n = {5}, c.norm.on = true;
  check(c);
  c.formats = {Format::kQ4K}, c.cols = 30720;
  check(c);
}

TEST(Matvec, NotFiniteStaysSo) {
  constexpr int64_t kCols = 512, kN = 3;
  for (const Format format : {Format::kQ4K, Format::kQ6K, Format::kMXFP4, Format::kBF16})
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x = normal(2 * kCols, 3);
      x[kCols + 100] = bad;
      const OnDevice<float> device_x(x), out(poisoned(2 * kN));
      const Stored w(format, kN, kCols, 4);
      MatvecParams p;
      p.rows = 2, p.cols = kCols, p.in.x = device_x.data(), p.in.stride = kCols;
      p.product[0] = {w.fmt(), w.weights(), kN, out.data()};
      ASSERT_EQ(matvec(p, nullptr), cudaSuccess);
      const std::vector<float> found = out.read();
      for (size_t i = 0; i < kN; ++i) {
        EXPECT_TRUE(std::isfinite(found[i]));
        EXPECT_FALSE(std::isfinite(found[kN + i])) << format_info(format).name;
      }
    }
}

TEST(Matvec, Refuses) {
  MatvecParams p;
  p.rows = kMatvecRows + 1;
  EXPECT_EQ(matvec(p, nullptr), cudaErrorInvalidValue);
  p.rows = 0;
  EXPECT_EQ(matvec(p, nullptr), cudaSuccess);
}

double activated(Act kind, double g, double u) {
  switch (kind) {
    case Act::kSilu:
      return g / (1 + std::exp(-g)) * u;
    case Act::kGelu:
      return 0.5 * g * std::erfc(-g / std::sqrt(2.0)) * u;
    case Act::kGeluTanh:
      return 0.5 * g * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g))) * u;
    default:
      g = std::min(g, 7.0), u = std::clamp(u, -7.0, 7.0);
      return (u + 1) * g / (1 + std::exp(-double(1.702f) * g));
  }
}

void check_gated(Format gate_format, Format up_format, Meet meet, int rows, int64_t cols, int64_t n, Act kind,
                 bool norm) {
  Case c;
  c.cols = cols, c.rows = rows, c.norm.on = norm;
  const Activations a(c);
  const Stored gate(gate_format, n, cols, 31, true, 0.05f), up(up_format, n, cols, 32, true, 0.05f);
  const OnDevice<float> out(poisoned(rows * n));
  GatedParams p;
  p.meet = meet, p.rows = rows, p.cols = cols, p.n = n, p.in = a.in;
  p.gate_format = gate.fmt(), p.up_format = up.fmt(), p.gate = gate.weights(), p.up = up.weights();
  p.activation.kind = kind, p.activation.alpha = 1.702f, p.activation.limit = 7.f;
  p.out = out.data();
  ASSERT_EQ(gated_matvec(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  a.check_normed(c);
  const std::vector<float> found = out.read();
  const bool rounded = rounds(meet, gate_format) && rounds(meet, up_format);
  for (int r = 0; r < rows; ++r) {
    const Taken x = take(a.rows[size_t(r)], rounded, !norm);
    for (int64_t i = 0; i < n; ++i) {
      const Bounded g = product(gate, i, x), u = product(up, i, x);
      // No activation is steeper than 1.13 in its gate.
      Bounded expected{activated(kind, g.value, u.value), 0};
      expected.tolerance = 1.2 * (std::abs(u.value) + 1) * g.tolerance + (std::abs(g.value) + 0.1) * u.tolerance +
                           g.tolerance * u.tolerance + 4e-6 * (std::abs(expected.value) + 1);
      expect_near(found[size_t(r * n + i)], expected,
                  std::string(format_info(gate_format).name) + " and " + std::string(format_info(up_format).name) +
                      ", row " + std::to_string(r) + ", neuron " + std::to_string(i));
    }
  }
}

TEST(GatedMatvec, EveryFormat) {
  for (const Format format : all_products())
    for (const Meet meet : {Meet::kQ8, Meet::kF32}) check_gated(format, format, meet, 2, 512, 19, Act::kSilu, false);
}

TEST(GatedMatvec, FormatsMayDiffer) {
  check_gated(Format::kQ4K, Format::kQ6K, Meet::kQ8, 1, 768, 70, Act::kSilu, true);
  check_gated(Format::kQ8_0, Format::kQ4K, Meet::kQ8, 4, 256, 33, Act::kSilu, true);
  check_gated(Format::kBF16, Format::kQ4K, Meet::kQ8, 1, 768, 5, Act::kSilu, false);
  check_gated(Format::kF32, Format::kF16, Meet::kQ8, 3, 1001, 5, Act::kSilu, true);
}

TEST(GatedMatvec, ActivationsAndRows) {
  for (const Act kind : {Act::kSilu, Act::kGelu, Act::kGeluTanh, Act::kClampedSwiglu})
    for (const int rows : {1, 3, 8}) check_gated(Format::kQ4K, Format::kQ4K, Meet::kQ8, rows, 2048, 6, kind, false);
}

TEST(GatedMatvec, LongRowsOfFewNeurons) {
  check_gated(Format::kQ4K, Format::kQ5K, Meet::kQ8, 2, 16640, 2, Act::kSilu, false);
  check_gated(Format::kF16, Format::kF16, Meet::kQ8, 2, 9000, 3, Act::kSilu, false);
}

using Router = cudaError_t (*)(const RouteLinearParams&, cudaStream_t);

void check_route(RouteParams route, Format format, int64_t cols, bool norm, bool with_bias,
                 Router router_of = route_linear, int64_t more_stride = 0) {
  Case c;
  c.cols = cols, c.rows = int(route.rows), c.norm.on = norm, c.more_stride = more_stride;
  const Activations a(c);
  const Stored router(format, route.experts, cols, 41, with_bias, 0.1f);
  const OnDevice<float> logits(poisoned(route.rows * route.experts)), weights(poisoned(route.rows * route.top_k)),
      same_weights(poisoned(route.rows * route.top_k)), selection(normal(size_t(route.experts), 42, 0.1f));
  const std::vector<int32_t> none(size_t(route.rows * route.top_k), -1);
  const OnDevice<int32_t> ids(none), same_ids(none);
  const std::vector<unsigned> zeros(size_t(route_rows_counters(route.rows)), 0u);
  const OnDevice<unsigned> arrived(zeros);
  if (route.score == Score::kSigmoid) route.selection_bias = selection.data();
  route.ids = ids.data(), route.weights = weights.data();
  RouteLinearParams p;
  p.in = a.in, p.cols = cols, p.format = router.fmt(), p.router = router.weights(), p.logits = logits.data();
  p.route = route, p.arrived = arrived.data();
  ASSERT_EQ(router_of(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(arrived.read(), zeros);
  a.check_normed(c);

  const std::vector<float> found = logits.read();
  for (int r = 0; r < c.rows; ++r) {
    const Taken x = take(a.rows[size_t(r)], false, false);  // never rounded
    for (int e = 0; e < route.experts; ++e) {
      Bounded expected = product(router, e, x);
      expected.tolerance += 4e-6 * std::abs(expected.value);
      expect_near(found[size_t(r * route.experts + e)], expected, "logit " + std::to_string(e));
    }
  }
  route.logits = logits.data(), route.ids = same_ids.data(), route.weights = same_weights.data();
  ASSERT_EQ(cuda::route(route, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(ids.read(), same_ids.read());
  EXPECT_EQ(weights.read(), same_weights.read());
}

TEST(RouteLinear, LogitsAndChoice) {
  RouteParams route;
  route.experts = 128, route.top_k = 8, route.renormalise = true;
  for (int rows = 1; rows <= kMatvecRows; ++rows) {
    route.rows = rows;
    check_route(route, rows % 2 ? Format::kF32 : Format::kBF16, 512, true, false);
  }
  route.rows = 2;
  for (const Score score : {Score::kSoftmax, Score::kSigmoid, Score::kSoftmaxAfterTopK, Score::kSparsemixer}) {
    route.score = score, route.top_k = score == Score::kSparsemixer ? 2 : 6, route.jitter_eps = 0.01f;
    check_route(route, Format::kQ8_0, 256, false, true);
  }
}

TEST(RouteLinear, NumbersOfExperts) {
  for (const int experts : {3, 32, 160, 513, 700}) {
    RouteParams route;
    route.rows = 3, route.experts = experts, route.top_k = 3, route.scale = 2.5f;
    check_route(route, Format::kF16, 130, true, true);
  }
}

TEST(RouteLinear, Groups) {
  RouteParams route;
  route.rows = 4, route.experts = 64, route.top_k = 6, route.groups = 8, route.top_groups = 3;
  route.score = Score::kSigmoid, route.sum_of_top2 = true;
  check_route(route, Format::kF32, 256, true, false);
}

TEST(RouteRows, LogitsAndChoice) {
  RouteParams route;
  route.experts = 128, route.top_k = 8, route.renormalise = true;
  const Format formats[] = {Format::kF32, Format::kBF16, Format::kF16};
  int turn = 0;
  for (const int rows : {1, 3, 8, 15, 16, 17, 40, 64}) {
    route.rows = rows;
    check_route(route, formats[turn % 3], turn % 2 ? 512 : 2048, true, turn % 2, route_rows, turn % 3 ? 0 : 4);
    ++turn;
  }
  route.rows = 5;
  for (const Score score : {Score::kSoftmax, Score::kSigmoid, Score::kSoftmaxAfterTopK, Score::kSparsemixer}) {
    route.score = score, route.top_k = score == Score::kSparsemixer ? 2 : 6, route.jitter_eps = 0.01f;
    check_route(route, Format::kF32, 260, true, true, route_rows);
  }
}

TEST(RouteRows, NumbersOfExperts) {
  for (const int experts : {3, 33, 160, 513}) {
    RouteParams route;
    route.rows = 19, route.experts = experts, route.top_k = 3, route.scale = 2.5f;
    check_route(route, Format::kF32, 2056, true, true, route_rows);
  }
}

TEST(RouteRows, RefusesWhatItCannotDo) {
  const OnDevice<float> x(normal(4 * 64, 1)), weight(normal(64, 2));
  RouteLinearParams p;
  p.in.x = x.data(), p.in.stride = 64, p.in.norm_weight = weight.data();
  p.cols = 64, p.router = {reinterpret_cast<const uint8_t*>(weight.data()), nullptr, nullptr};
  p.route.rows = 4, p.route.experts = 8, p.route.top_k = 2;
  EXPECT_TRUE(route_rows_takes(p));
  const auto refused = [&](auto change) {
    RouteLinearParams other = p;
    change(other);
    EXPECT_FALSE(route_rows_takes(other));
    EXPECT_EQ(route_rows(other, nullptr), cudaErrorInvalidValue);
  };
  refused([](RouteLinearParams& o) { o.in.norm_weight = nullptr; });
  refused([](RouteLinearParams& o) { o.in.centred = true; });
  refused([](RouteLinearParams& o) { o.in.norm_bias = o.in.norm_weight; });
  refused([](RouteLinearParams& o) { o.in.x += 1; });
  refused([](RouteLinearParams& o) { o.cols = 62; });
  refused([](RouteLinearParams& o) { o.format = Fmt::kQ8_0; });
  refused([](RouteLinearParams& o) { o.route.rows = kRouteRows + 1; });
}

}  // namespace
}  // namespace ef::cuda::testing
