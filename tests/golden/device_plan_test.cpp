// An engine on a CUDA device, where there is one, takes its memory before it loads, and nothing afterwards.
#include <gtest/gtest.h>

#include <map>

#include "expertflow/backend/cuda_backend.h"
#include "expertflow/base/errors.h"
#include "expertflow/engine/sequence.h"
#include "tests/support/golden_check.h"

namespace ef::testing {
namespace {

class DevicePlan : public ::testing::TestWithParam<std::string> {
 protected:
  // Small chunks and a long context; measuring needs more rows than a step has.
  static EngineOptions options(bool invariant) {
    EngineOptions o;
    o.device = "cuda";
    o.ctx_size = 512, o.ubatch = 24;
    o.batch_invariant = invariant;
    o.autotune = "off";
    o.drift_check = 4;
    return o;
  }
  static std::unique_ptr<Engine> engine(const std::string& fixture, const EngineOptions& o) {
    static const Log quiet(LogLevel::kOff, nullptr);
    return std::make_unique<Engine>(open_model(fixtures() / "hf" / fixture), o, quiet);
  }
  static void run(Engine& engine) {
    Sequence sequence(engine, 300);
    std::vector<TokenId> prompt;
    for (int i = 0; i < 100; ++i) prompt.push_back(TokenId(i * 7 % engine.config().vocab));
    sequence.feed(prompt);
    for (int i = 0; i < 6; ++i) sequence.feed(std::span(prompt).subspan(size_t(i), 1));
  }
};

std::vector<std::string> models() {
  if (cuda_device_count() == 0) return {};
  return {"qwen3_moe", "gpt_oss", "deepseek_v2"};
}

TEST_P(DevicePlan, WhatIsTakenIsWhatWasPlannedAndNothingLater) {
  for (const bool invariant : {false, true}) {
    const auto e = engine(GetParam(), options(invariant));
    const MemoryPlan& plan = e->plan();
    EXPECT_TRUE(plan.reserved);
    std::map<std::string, uint64_t> held;
    for (const MemoryPiece& piece : e->memory_report().pieces)
      if (!piece.until) held[std::string(piece.use.part)] += piece.bytes;
    for (const PlanPart& part : plan.parts) {
      if (!part.exact) continue;
      EXPECT_EQ(held[std::string(part.name)], part.bytes) << part.name;
    }
    run(*e);
    const MemoryReport report = e->memory_report();
    EXPECT_GE(report.steps, 11u);
    for (const MemoryPiece& piece : report.pieces) EXPECT_EQ(piece.from, 0u) << piece.use.part << " " << piece.bytes;
    for (const RegionReport& r : report.regions) {
      EXPECT_EQ(r.reserved, plan.taken(r.region));
      EXPECT_LE(r.peak, r.reserved);
    }
    EXPECT_EQ(report.regions[size_t(Region::kStatic)].used, plan.expected(Region::kStatic));
  }
}

TEST_P(DevicePlan, TheDeviceHasThatMuchLess) {
  const uint64_t before = cuda_memory(0).free;
  const auto e = engine(GetParam(), options(false));
  EXPECT_GE(before - cuda_memory(0).free, e->plan().taken());
}

TEST_P(DevicePlan, ExpertsComeBackToTheirRegion) {
  const auto e = engine(GetParam(), options(false));
  const uint64_t used = e->memory_report().regions[size_t(Region::kStatic)].used;
  e->set_expert_memory("100%");
  EXPECT_EQ(e->memory_report().regions[size_t(Region::kStatic)].used, used);
  EXPECT_THROW(e->set_expert_memory("50%"), ConfigError);
  run(*e);
}

TEST_P(DevicePlan, ACapBelowThePlanIsRefusedBeforeAnythingIsTaken) {
  EngineOptions o = options(false);
  const uint64_t needed = engine(GetParam(), o)->plan().taken(), free = cuda_memory(0).free;
  o.device_memory = std::to_string(needed - 1);
  try {
    engine(GetParam(), o);
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("--device-memory"), std::string::npos) << e.what();
  }
  EXPECT_EQ(cuda_memory(0).free, free);
  o.device_memory = std::to_string(needed);
  run(*engine(GetParam(), o));
}

INSTANTIATE_TEST_SUITE_P(Models, DevicePlan, ::testing::ValuesIn(models()),
                         [](const auto& info) { return info.param; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DevicePlan);

}  // namespace
}  // namespace ef::testing
