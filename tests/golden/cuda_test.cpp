// Every fixture checkpoint on a CUDA device, where there is one: float32 sums in another order than the golden
// outputs', so ten times their tolerance.
#include <gtest/gtest.h>

#include "expertflow/backend/cuda_backend.h"
#include "expertflow/base/errors.h"
#include "tests/support/golden_check.h"

namespace ef::testing {
namespace {

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
