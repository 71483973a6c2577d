#include "expertflow/model/experts.h"

#include <gtest/gtest.h>

#include <cmath>

#include "expertflow/backend/cpu/cpu_backend.h"
#include "tests/model/editable_checkpoint.h"

namespace ef::testing {
namespace {

TEST(Experts, AssignmentsAreGroupedByExpert) {
  const std::vector<int32_t> ids{5, 2, 2, 7, 5, 0};
  AssignmentGroups g = group_assignments({3, 2, ids.data(), nullptr}, 8);
  EXPECT_EQ(g.experts, (std::vector<ExpertId>{0, 2, 5, 7}));
  EXPECT_EQ(g.begin, (std::vector<int32_t>{0, 1, 3, 5, 6}));
  EXPECT_EQ(g.order, (std::vector<int32_t>{5, 1, 2, 0, 4, 3}));
  EXPECT_EQ(std::vector<int32_t>(g.of(2).begin(), g.of(2).end()), (std::vector<int32_t>{0, 4}));
}

TEST(Experts, NoTokensNoGroups) {
  AssignmentGroups g = group_assignments({0, 2, nullptr, nullptr}, 8);
  EXPECT_TRUE(g.experts.empty());
  EXPECT_EQ(g.begin, std::vector<int32_t>{0});
}

TEST(Experts, AnIdOutOfRangeFailsTheStep) {
  for (int32_t bad : {-1, 8}) {
    const std::vector<int32_t> ids{0, bad};
    EXPECT_THROW(group_assignments({1, 2, ids.data(), nullptr}, 8), DeviceError);
  }
}

// run() against the definition: sum over ranks of weight * down(silu(gate x) * up x), in float64 from the file's own
// numbers.
TEST(Experts, AllResidentComputesTheSum) {
  Checkpoint c = open_checkpoint(hf_fixture("mixtral"));
  Config config = config_of(c);
  ExpertStore store(c.directory, binding_of(c).experts);
  ThreadPool pool(1);
  auto backend = make_cpu_backend(pool, Isa::kReference);
  auto experts = make_all_resident(config, store, *backend);
  auto stream = backend->make_stream();
  const int tokens = 3, hidden = 64, ffn = 96;
  std::vector<float> x(tokens * hidden), out(tokens * hidden);
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(std::sin(0.37 * double(i)));
  const std::vector<int32_t> ids{1, 4, 4, 0, 7, 1};
  const std::vector<float> weights{0.6f, 0.4f, 0.9f, 0.1f, 0.5f, 0.5f};
  experts->begin_step();
  experts->run(2, x.data(), {tokens, 2, ids.data(), weights.data()}, out.data(), *stream);
  experts->end_step();
  auto matrix = [&](int e, const char* w) {
    return c.directory.read_f32(
        c.directory.at("model.layers.2.block_sparse_moe.experts." + std::to_string(e) + "." + w + ".weight"));
  };
  for (int t = 0; t < tokens; ++t) {
    std::vector<double> expected(hidden, 0);
    for (int k = 0; k < 2; ++k) {
      const int e = ids[size_t(t * 2 + k)];
      const std::vector<float> w1 = matrix(e, "w1"), w3 = matrix(e, "w3"), w2 = matrix(e, "w2");
      std::vector<double> inner(ffn);
      for (int f = 0; f < ffn; ++f) {
        double g = 0, u = 0;
        for (int h = 0; h < hidden; ++h) {
          g += double(w1[size_t(f * hidden + h)]) * x[size_t(t * hidden + h)];
          u += double(w3[size_t(f * hidden + h)]) * x[size_t(t * hidden + h)];
        }
        inner[size_t(f)] = g / (1 + std::exp(-g)) * u;
      }
      for (int h = 0; h < hidden; ++h)
        for (int f = 0; f < ffn; ++f)
          expected[size_t(h)] += double(weights[size_t(t * 2 + k)]) * w2[size_t(h * ffn + f)] * inner[size_t(f)];
    }
    for (int h = 0; h < hidden; ++h)
      EXPECT_NEAR(out[size_t(t * hidden + h)], expected[size_t(h)], 1e-5 * (1 + std::fabs(expected[size_t(h)])));
  }
}

}  // namespace
}  // namespace ef::testing
