// Every fixture checkpoint on a CUDA device, where there is one: float32 sums in another order than the golden
// outputs', so ten times their tolerance.
#include <gtest/gtest.h>

#include "expertflow/backend/cuda_backend.h"
#include "expertflow/base/errors.h"
#include "expertflow/engine/sequence.h"
#include "tests/support/golden_check.h"

namespace ef::testing {
namespace {

constexpr double kRoundedShare = 0.06, kWrongChoices = 0.05;

class GoldenCuda : public ::testing::TestWithParam<std::string> {};

std::vector<std::string> names() {
  std::vector<std::string> out;
  if (cuda_device_count() == 0) return out;
  for (const Fixture& fixture : all_fixtures()) out.push_back(fixture.name);
  return out;
}

TEST_P(GoldenCuda, LogitsExpertsAndGreedyTokens) {
  for (Fixture fixture : all_fixtures()) {
    if (fixture.name != GetParam()) continue;
    fixture.tolerance *= 10;
    const FixtureReport report = check_fixture(fixture, "auto", "auto", "f32", "cuda");
    EXPECT_TRUE(report.pass(fixture)) << report.text();
    EXPECT_EQ(report.expert_rows == 0, fixture.logits_only);
  }
}

// Kernels chosen by shape, numbers rounded to 16 and 8 bits: logits are off by a share of the largest one, in rows
// before the first whose router decides a near tie otherwise (rows behind it attend to other keys and values).
TEST_P(GoldenCuda, KernelsChosenByShape) {
  for (const Fixture& fixture : all_fixtures()) {
    if (fixture.name != GetParam()) continue;
    const FixtureReport report = check_fixture(fixture, "auto", "auto", "q8", "cuda", false);
    // Phi-MoE's weights jump where a logit crosses the mask of its router.
    if (fixture.name.find("phimoe") == std::string::npos) {
      EXPECT_LE(report.max_equal_error, kRoundedShare * report.max_logit) << report.text();
    }
    EXPECT_GT(report.equal_rows, 0);
    EXPECT_LE(double(report.wrong_expert_rows), kWrongChoices * double(report.expert_rows)) << report.text();
  }
}

struct Watcher final : StepObserver {
  void on_routing(LayerId, const float*, const float*, const RoutingView&) override {}
};

// A watched step is not recorded: twenty tokens both ways, and by the largest logits alone.
TEST_P(GoldenCuda, RecordedStepsGiveWhatTheirOpsGive) {
  for (const Fixture& fixture : all_fixtures()) {
    if (fixture.name != GetParam()) continue;
    static const Log log;
    EngineOptions options;
    options.device = "cuda";
    options.autotune = "off";
    options.ctx_size = 512;
    options.threads = 1;
    Engine engine(open_model(fixture.model), options, log);
    ASSERT_GT(engine.most_top(), 4);
    Watcher watcher;
    constexpr int kTokens = 20;
    std::vector<std::vector<float>> logits[2];
    for (const bool watched : {true, false}) {
      engine.set_observer(watched ? &watcher : nullptr);
      Sequence sequence(engine, kTokens);
      for (int i = 0; i < kTokens; ++i) {
        const std::vector<TokenId> token = {TokenId(7 * i + 3)};
        const auto row = sequence.feed(token);
        logits[watched].emplace_back(row.begin(), row.end());
      }
    }
    Sequence sequence(engine, kTokens);
    for (int i = 0; i < kTokens; ++i) {
      const auto &watched = logits[1][size_t(i)], &recorded = logits[0][size_t(i)];
      // Layers that a recorded step takes as a whole meet numbers of 16 digits where their ops do not.
      float largest = 1;
      for (const float logit : watched) largest = std::max(largest, std::abs(logit));
      for (size_t v = 0; v < watched.size(); ++v)
        ASSERT_NEAR(recorded[v], watched[v], 5e-4 * double(largest)) << "token " << i;
      const std::vector<TokenId> token = {TokenId(7 * i + 3)};
      const TopLogits top = sequence.feed_top(token, 4);
      ASSERT_EQ(top.ids.size(), 4u);
      ASSERT_EQ(top.ids[0], argmax(recorded)) << "token " << i;
      for (size_t rank = 0; rank < 4; ++rank) ASSERT_EQ(top.logits[rank], recorded[size_t(top.ids[rank])]);
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GoldenCuda);
INSTANTIATE_TEST_SUITE_P(Fixtures, GoldenCuda, ::testing::ValuesIn(names()), [](const auto& info) {
  std::string name = info.param;
  for (char& ch : name)
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  return name;
});

TEST(GoldenCudaAbsent, IsSaidWithTheWayOut) {
  if (cuda_device_count() > 0) {
    EXPECT_TRUE(built_with_cuda());
    return;
  }
  try {
    check_fixture(all_fixtures().front(), "auto", "auto", "f32", "cuda");
    ADD_FAILURE() << "ran without a device";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("--device cpu"), std::string::npos) << error.what();
  }
}

TEST(GoldenCudaAbsent, DevicesAreNamedOrRefused) {
  for (const char* device : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CUDA", ""}) {
    try {
      check_fixture(all_fixtures().front(), "auto", "auto", "f32", device);
      ADD_FAILURE() << device;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("cuda:N"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace ef::testing
