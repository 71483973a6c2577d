// What a server asks of its engine where nobody says: context for all its slots, or as much as the KV cache's cap
// allows.
#include <gtest/gtest.h>

#include "expertflow/base/errors.h"
#include "expertflow/engine/memory_plan.h"
#include "tests/server/rig.h"

namespace ef::testing {
namespace {

RigSetup unsaid(int parallel) {
  RigSetup setup;
  setup.ctx_size = -1;
  setup.parallel = parallel;
  setup.budget = "25%";
  return setup;
}

// Bytes of a KV cache of so many tokens for so many slots.
uint64_t kv_bytes(int64_t tokens, int parallel) {
  EngineOptions o;
  o.ctx_size = tokens;
  o.parallel = parallel;
  o.expert_memory = "25%";
  return plan_engine(*open_model(demo_model()), o).kv_bytes;
}

TEST(ServedModel, TheContextIsHalvedUntilTheKvCacheFitsItsCap) {
  const int64_t each = std::min<int64_t>(4096, open_model(demo_model())->config.context_length);
  struct Case {
    int parallel, allowed, expected;  // the latter two in sequences
  };
  for (const Case& c : {Case{8, 8, 8}, Case{8, 7, 4}, Case{8, 3, 2}, Case{8, 1, 1}, Case{5, 4, 3}}) {
    RigSetup setup = unsaid(c.parallel);
    setup.max_kv_cache_memory = std::to_string(kv_bytes(each * c.allowed, c.parallel));
    ServerRig rig(setup);
    EXPECT_EQ(rig.model().engine->context_length(), each * c.expected) << c.parallel << " " << c.allowed;
    EXPECT_EQ(rig.get("/props").json()["total_slots"], c.parallel);  // they share it
    EXPECT_EQ(rig.post("/v1/completions", completion_body("a cat", 2)).status, 200);
  }
}

TEST(ServedModel, WhatDoesNotFitForOneIsRefused) {
  RigSetup setup = unsaid(4);
  setup.max_kv_cache_memory = "4096";
  try {
    ServerRig rig(setup);
    FAIL() << "it was loaded";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("max-kv-cache-memory"), std::string::npos) << error.what();
  }
  setup.max_kv_cache_memory.clear();
  setup.ctx_size = 96;  // what is asked for is not changed
  ServerRig rig(setup);
  EXPECT_EQ(rig.model().engine->context_length(), 96);
}

}  // namespace
}  // namespace ef::testing
