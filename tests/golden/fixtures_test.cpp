// Every fixture checkpoint against Hugging Face's golden outputs: all experts resident, through the cache at full
// budget, and with the fewest slots that work.
#include <gtest/gtest.h>

#include "tests/support/golden_check.h"

namespace ef::testing {
namespace {

struct Case {
  Fixture fixture;
  std::string budget;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Fixture& fixture : all_fixtures())
    for (const char* budget : {"resident", "100%", "min"}) out.push_back({fixture, budget});
  return out;
}

// Printed by name, not as bytes, when a case fails.
void PrintTo(const Case& c, std::ostream* out) { *out << c.fixture.name << " at " << c.budget; }

class Golden : public ::testing::TestWithParam<Case> {};

TEST_P(Golden, LogitsExpertsAndGreedyTokens) {
  const FixtureReport report = check_fixture(GetParam().fixture, GetParam().budget);
  EXPECT_TRUE(report.pass(GetParam().fixture)) << report.text();
  EXPECT_EQ(report.expert_rows == 0, GetParam().fixture.logits_only);
}

// Activations of 8 bits, the default, against the same outputs. The step of an activation is 1/127 of the largest of
// 32, so each product is off by half a percent or so of its size; this model is 32 wide and driven into
// its clamps, so little of that averages out.
TEST(GoldenQuantised, LogitsStayNearAndBudgetsAgree) {
  int seen = 0;
  for (const Fixture& fixture : all_fixtures()) {
    if (fixture.name.find("mxfp4") == std::string::npos) continue;
    ++seen;
    const FixtureReport resident = check_fixture(fixture, "resident", "auto", "q8");
    EXPECT_GT(resident.max_logit_error, 0);
    EXPECT_LE(resident.max_logit_error, 0.1 * resident.max_logit) << fixture.name << ": " << resident.text();
    for (const char* budget : {"100%", "min"})
      EXPECT_EQ(check_fixture(fixture, budget, "auto", "q8").text(), resident.text())
          << fixture.name << " at " << budget;
  }
  EXPECT_GE(seen, 2);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Golden, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.fixture.name + "_" + info.param.budget;
  for (char& ch : name)
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  return name;
});

}  // namespace
}  // namespace ef::testing
