// The compositions of backend.h against the same backend's single ops in exact arithmetic: what a backend does as a
// whole must be what its parts give, up to the rounding that it says it does.
#include <algorithm>

#include "tests/contract/op_test.h"

namespace ef::testing {
namespace {

// What a composition may be off by, relative to the norm of the whole result: sums in another order, or numbers rounded
// to 16 bits (2^-9 for bfloat16, several roundings one after the other) or to 8 (half a step of 127, spread evenly).
double tolerance_of(const BackendMaker& maker, Format format) {
  if (maker.arithmetic == Arithmetic::kExact) return 1e-5;
  if (maker.arithmetic == Arithmetic::kRounds8) return 2e-2;
  return format == Format::kBF16 ? 1e-2 : 2e-3;
}

using Outputs = std::vector<std::vector<float>>;

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i]));
    norm += double(b[i]) * double(b[i]);
  }
  return std::sqrt(difference / (norm + 1e-300));
}

// The backend under test, and one with exact single ops to compare with: everything is made twice from one seed.
class Composed : public ::testing::TestWithParam<BackendMaker> {
 protected:
  // build(backend, random) gives the outputs of one composition, or of its parts if asked.
  template <class Build>
  void compare(Format format, const char* what, const Build& build) {
    ThreadPool pool(2);
    const auto backend = GetParam().make(pool), oracle = GetParam().oracle(pool);
    Random first(17), second(17);
    const std::vector<std::vector<float>> got = build(*backend, first, false), want = build(*oracle, second, true);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      for (float v : got[i]) ASSERT_TRUE(std::isfinite(v)) << what << ": an element was not written";
      EXPECT_LE(distance(got[i], want[i]), tolerance_of(GetParam(), format))
          << what << ", " << format_info(format).name << ", output " << i;
    }
  }
};

std::vector<float> nans(int64_t n) { return std::vector<float>(size_t(n), NAN); }

constexpr Format kFormats[] = {Format::kF32,  Format::kF16, Format::kBF16, Format::kF8E4M3,
                               Format::kQ8_0, Format::kQ4K, Format::kQ6K,  Format::kMXFP4};
constexpr int64_t kRows[] = {1, 3, 9, 16, 40};

TEST_P(Composed, NormAndProducts) {
  for (const Format format : kFormats) {
    for (const int64_t rows : kRows) {
      compare(format, "norm_linear", [&](Backend& b, Random& random, bool parts) {
        const auto stream = b.make_stream();
        const int64_t cols = 256;
        const TestMatrix w[] = {make_matrix(b, random, format, 40, cols), make_matrix(b, random, format, 17, cols),
                                make_matrix(b, random, Format::kF16, 5, cols)};
        const DeviceArray<float> x(b, random.floats(rows * cols, 3.f)), weight(b, random.floats(cols)),
            bias(b, random.floats(40));
        DeviceArray<float> normed(b, nans(rows * cols)), out0(b, nans(rows * 40)), out1(b, nans(rows * 17)),
            out2(b, nans(rows * 5));
        const LinearOut outs[] = {{w[0].view, bias.data(), out0.data()},
                                  {w[1].view, nullptr, out1.data()},
                                  {w[2].view, nullptr, out2.data()}};
        const NormLinearArgs args{{NormKind::kRms, rows, cols, 1e-6f, weight.data(), nullptr, x.data(), normed.data()},
                                  outs};
        if (parts)
          b.Backend::norm_linear(*stream, args);
        else
          b.norm_linear(*stream, args);
        stream->synchronize();
        return Outputs{normed.read(), out0.read(), out1.read(), out2.read()};
      });
    }
  }
}

TEST_P(Composed, ProductAddedToWhatIsThere) {
  for (const Format format : kFormats) {
    for (const int64_t rows : kRows) {
      compare(format, "linear_add", [&](Backend& b, Random& random, bool parts) {
        const auto stream = b.make_stream();
        const int64_t cols = 512, n = 33;
        const TestMatrix w = make_matrix(b, random, format, n, cols);
        const DeviceArray<float> x(b, random.floats(rows * cols)), bias(b, random.floats(n));
        DeviceArray<float> out(b, nans(rows * n)), to(b, random.floats(rows * n));
        const LinearAddArgs args{{w.view, bias.data(), rows, x.data(), out.data()}, to.data(), 0.5f};
        if (parts)
          b.Backend::linear_add(*stream, args);
        else
          b.linear_add(*stream, args);
        stream->synchronize();
        return Outputs{to.read()};
      });
    }
  }
}

TEST_P(Composed, GatedProducts) {
  for (const Format format : kFormats) {
    for (const int64_t rows : kRows) {
      compare(format, "gated_linear", [&](Backend& b, Random& random, bool parts) {
        const auto stream = b.make_stream();
        const int64_t cols = 256, n = 70;
        const TestMatrix gate = make_matrix(b, random, format, n, cols, 0.1f),
                         up = make_matrix(b, random, format, n, cols, 0.1f);
        const DeviceArray<float> x(b, random.floats(rows * cols));
        DeviceArray<float> out(b, nans(rows * n)), scratch(b, nans(rows * n));
        const GatedLinearArgs args{gate.view, up.view, {}, rows, x.data(), out.data(), scratch.data()};
        if (parts)
          b.Backend::gated_linear(*stream, args);
        else
          b.gated_linear(*stream, args);
        stream->synchronize();
        return Outputs{out.read()};
      });
    }
  }
}

// Routers are never rounded: choices are equal, and the weights agree as float32 sums do.
TEST_P(Composed, NormAndRoute) {
  for (const Format format : {Format::kF32, Format::kBF16}) {
    for (const int64_t rows : kRows) {
      ThreadPool pool(2);
      std::vector<int32_t> ids[2];
      std::vector<float> weights[2];
      for (int which = 0; which < 2; ++which) {
        const auto b = which ? GetParam().oracle(pool) : GetParam().make(pool);
        const auto stream = b->make_stream();
        Random random(23);
        const int64_t cols = 128;
        const int experts = 60, top_k = 4;
        const TestMatrix router = make_matrix(*b, random, format, experts, cols);
        const DeviceArray<float> x(*b, random.floats(rows * cols)), weight(*b, random.floats(cols));
        DeviceArray<float> normed(*b, nans(rows * cols)), logits(*b, nans(rows * experts)), out(*b, nans(rows * top_k));
        DeviceArray<int32_t> chosen(*b, std::vector<int32_t>(size_t(rows * top_k), -1));
        NormRouteArgs args;
        args.norm = {NormKind::kRms, rows, cols, 1e-6f, weight.data(), nullptr, x.data(), normed.data()};
        args.router = router.view;
        args.logits = logits.data();
        args.route.rows = rows, args.route.experts = experts, args.route.top_k = top_k;
        args.route.renormalise = true;
        args.route.logits = logits.data();
        args.route.ids = chosen.data(), args.route.weights = out.data();
        if (which)
          b->Backend::norm_route(*stream, args);
        else
          b->norm_route(*stream, args);
        stream->synchronize();
        ids[which] = chosen.read();
        weights[which] = out.read();
        for (float v : normed.read()) ASSERT_FALSE(std::isnan(v)) << "the normalised input was not written";
      }
      EXPECT_EQ(ids[0], ids[1]);
      EXPECT_LE(distance(weights[0], weights[1]), 1e-5);
    }
  }
}

struct AttendCase {
  int heads, kv_heads, dim;
  KvType type;
  bool norms, whole, interleaved;
  int window, rotary;
  std::vector<int> lengths;  // cached positions before the step, a sequence each
  std::vector<int> rows;     // of the step
};

// Cached positions come from a first call, so both calls' keys pass the store.
std::vector<std::vector<float>> attend_twice(Backend& b, Random& random, const AttendCase& c, bool parts) {
  const auto stream = b.make_stream();
  const int block_tokens = 16, sequences = int(c.rows.size()), max_blocks = 12;
  const int64_t pool_rows = int64_t(sequences) * max_blocks * block_tokens;
  const int64_t kv_bytes = pool_rows * c.kv_heads * c.dim * kv_type_bytes(c.type);
  DeviceArray<std::byte> k_pool(b, std::vector<std::byte>(size_t(kv_bytes))),
      v_pool(b, std::vector<std::byte>(size_t(kv_bytes)));
  std::vector<int32_t> table(size_t(sequences * max_blocks));
  for (size_t i = 0; i < table.size(); ++i) table[i] = int32_t(i);
  random.shuffle(table);
  const DeviceArray<int32_t> device_table(b, table);
  const DeviceArray<float> q_norm(b, random.floats(int64_t(c.heads) * c.dim)),
      k_norm(b, random.floats(int64_t(c.kv_heads) * c.dim)), sinks(b, random.floats(c.heads));
  std::vector<std::vector<float>> outputs;
  for (const bool second : {false, true}) {
    std::vector<int32_t> position, sequence;
    for (int s = 0; s < sequences; ++s) {
      const int from = second ? c.lengths[size_t(s)] : 0, n = second ? c.rows[size_t(s)] : c.lengths[size_t(s)];
      for (int i = 0; i < n; ++i) position.push_back(from + i), sequence.push_back(s);
    }
    const int64_t rows = int64_t(position.size());
    if (rows == 0) continue;
    const DeviceArray<int32_t> device_position(b, position), device_sequence(b, sequence);
    DeviceArray<float> q(b, random.floats(rows * c.heads * c.dim)), k(b, random.floats(rows * c.kv_heads * c.dim)),
        v(b, random.floats(rows * c.kv_heads * c.dim)), out(b, nans(rows * c.heads * c.dim));
    std::vector<float> cos(size_t(rows * c.rotary / 2)), sin(cos.size());
    for (size_t i = 0; i < cos.size(); ++i) {
      const double angle = double(random.normal());
      cos[i] = float(std::cos(angle)), sin[i] = float(std::sin(angle));
    }
    const DeviceArray<float> device_cos(b, cos), device_sin(b, sin);
    AttendArgs a;
    BatchView batch{rows, device_position.data(), device_sequence.data(), device_table.data(), max_blocks};
    batch.reach = *std::max_element(position.begin(), position.end()) + 1;
    batch.one_row_each = second && std::all_of(c.rows.begin(), c.rows.end(), [](int n) { return n == 1; });
    const KvView kv{c.type, block_tokens, c.kv_heads, c.dim, c.dim, k_pool.data(), v_pool.data()};
    a.attention = {kv, batch, c.heads, c.window, 0.125f, sinks.data(), q.data(), out.data()};
    a.q = q.data(), a.k = k.data(), a.v = v.data();
    if (c.norms) a.q_norm = q_norm.data(), a.k_norm = k_norm.data();
    a.norm_whole = c.whole;
    a.rotary = c.rotary, a.interleaved = c.interleaved;
    a.cos = device_cos.data(), a.sin = device_sin.data();
    if (parts)
      b.Backend::attend(*stream, a);
    else
      b.attend(*stream, a);
    stream->synchronize();
    outputs.push_back(out.read());
  }
  return outputs;
}

TEST_P(Composed, AttendsAsItsParts) {
  const AttendCase cases[] = {
      {8, 2, 64, KvType::kF16, true, false, false, 0, 64, {40}, {1}},
      {8, 2, 64, KvType::kF16, true, false, false, 0, 64, {37, 5, 150}, {1, 1, 1}},
      {4, 4, 128, KvType::kBF16, false, false, false, 0, 128, {20, 70}, {30, 41}},
      {6, 2, 64, KvType::kF32, true, true, false, 0, 64, {9}, {12}},
      {8, 1, 96, KvType::kF16, false, false, true, 24, 32, {0, 64}, {70, 1}},
      {4, 2, 64, KvType::kF16, true, false, false, 16, 64, {100}, {1}},
  };
  for (const AttendCase& c : cases) {
    const Format as = c.type == KvType::kBF16 ? Format::kBF16 : Format::kF16;
    compare(as, "attend", [&](Backend& b, Random& random, bool parts) { return attend_twice(b, random, c, parts); });
  }
}

using RoutedOnDevice = Composed;  // of backends whose choices the host need not see

// All experts of a layer by a table of the device, against groups that the host made.
TEST_P(RoutedOnDevice, RoutedExperts) {
  const int experts = 12, top_k = 3;
  const int64_t hidden = 256, ffn = 256;
  for (const Format format : kFormats) {
    for (const int64_t rows : {1, 2, 5, 16, 70, 130}) {
      compare(format, "routed_experts", [&](Backend& b, Random& random, bool parts) {
        const auto stream = b.make_stream();
        std::vector<TestMatrix> matrices;
        std::vector<ExpertView> views;
        for (int e = 0; e < experts; ++e) {
          matrices.push_back(make_matrix(b, random, format, ffn, hidden, 0.1f));
          matrices.push_back(make_matrix(b, random, format, ffn, hidden, 0.1f));
          matrices.push_back(make_matrix(b, random, format, hidden, ffn, 0.1f));
        }
        for (int e = 0; e < experts; ++e) {
          const size_t at = size_t(e) * 3;
          views.push_back({matrices[at].view, matrices[at + 1].view, matrices[at + 2].view});
        }
        std::vector<int32_t> ids;
        for (int64_t r = 0; r < rows; ++r) {
          const int one = random.below(experts);  // distinct ones, the first of them wanted by all rows
          const int all[] = {0, 1 + one % (experts - 2), experts - 1};
          ids.insert(ids.end(), std::begin(all), std::end(all));
        }
        const DeviceArray<int32_t> device_ids(b, ids);
        const DeviceArray<float> weights(b, random.floats(rows * top_k)), x(b, random.floats(rows * hidden));
        DeviceArray<float> out(b, nans(rows * hidden)), to(b, random.floats(rows * hidden)),
            parts_out(b, nans(rows * top_k * hidden));
        if (parts) {
          std::vector<ExpertGroup> groups;
          std::vector<std::vector<int32_t>> assignments(static_cast<size_t>(experts));
          for (size_t a = 0; a < ids.size(); ++a) assignments[size_t(ids[a])].push_back(int32_t(a));
          for (int e = 0; e < experts; ++e) groups.push_back({views[size_t(e)], assignments[size_t(e)]});
          b.experts(*stream, {{}, hidden, ffn, top_k, groups, x.data(), parts_out.data()});
          b.combine(*stream, {rows, hidden, top_k, parts_out.data(), weights.data(), out.data()});
          b.add_scaled(*stream, to.data(), out.data(), 0.5f, rows * hidden);
        } else {
          const Buffer table = b.expert_table(views, *stream);
          RoutedExpertsArgs a;
          a.rows = rows, a.hidden = hidden, a.ffn = ffn, a.top_k = top_k;
          a.kind = &views.front(), a.experts = experts, a.table = table.data();
          a.ids = device_ids.data(), a.weights = weights.data(), a.x = x.data(), a.out = out.data();
          b.routed_experts(*stream, a);
          a.out = parts_out.data(), a.add_to = to.data(), a.add_scale = 0.5f;
          b.routed_experts(*stream, a);
          stream->synchronize();
        }
        stream->synchronize();
        return Outputs{out.read(), to.read()};
      });
    }
  }
}

std::vector<BackendMaker> routing_makers() {
  ThreadPool pool(1);
  std::vector<BackendMaker> makers = composition_makers();
  std::erase_if(makers, [&](const BackendMaker& maker) { return !maker.make(pool)->routes_on_device({}); });
  return makers;
}

INSTANTIATE_TEST_SUITE_P(Backends, Composed, ::testing::ValuesIn(composition_makers()), backend_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RoutedOnDevice);
INSTANTIATE_TEST_SUITE_P(Backends, RoutedOnDevice, ::testing::ValuesIn(routing_makers()), backend_name);

}  // namespace
}  // namespace ef::testing
